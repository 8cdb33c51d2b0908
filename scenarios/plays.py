"""Plays as text files become clients of data: a client is a role of a play, and its text all that
the role says, in examples of equal length.

In a file, a speech begins with the role's name in capitals at the start of a line, followed by a
tab and its first line, or by a full stop, as "KING HENRY." or "KING HENRY. So shaken as we are".
Its further lines follow, until the next name, a heading or an empty line. What stands before the
first act is a list of roles, and what stands in square brackets is a stage direction; neither is
text.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from fedray import InputError
from .reproduction import decode_text, input_files, read_regular_file

MOST_BYTES = 1 << 26
"""Most bytes of a play."""
LENGTH = 80
"""Characters of an example, as in the published benchmark."""
LEAST_CHARACTERS = 2 * LENGTH
"""Characters below which a role is left out: one example teaches and tests nothing."""
_DIRECTION = re.compile(r"\[[^\]]*\]")
# A prologue is a heading by itself, and a role where it has a speech.
_HEADING = re.compile(r"\s*((ACT|SCENE|INDUCTION)\b|(PROLOGUE|EPILOGUE)\W*$)")
_FIRST_ACT = re.compile(r"^\s*(ACT|PROLOGUE|INDUCTION)\b.*$", re.MULTILINE)
# A name has no lower-case letter, so "I" at the start of a sentence needs its tab or full stop.
_SPEECH = re.compile(r"([A-Z][^a-z\t]*[^a-z\t\s.])(?:\t+|\.(?:\s+|$))(.*)")


def roles_of(folder: Path) -> dict[str, str]:
    """Returns the text of every role of the plays in a folder, by "play_ROLE".

    Raises:
        InputError: a file cannot be read or has no role.
    """
    try:
        files = input_files(folder).files
    except OSError as error:
        raise InputError(
            f"{str(folder)!r} is no folder with plays ({error.strerror or error}); name one"
        ) from None
    roles: dict[str, list[str]] = {}
    for file in files:
        lines = list(_lines_of(_content(file.path)))
        if not lines:
            raise InputError(f"play {str(file.path)!r} has no role; keep only plays in the folder")
        for role, line in lines:
            roles.setdefault(f"{file.path.stem}_{role}", []).append(line)
    return {role: "\n".join(lines) for role, lines in roles.items()}


def examples_of(folder: Path) -> list[tuple[str, str]]:
    """Returns (role, text) of every example, of LENGTH characters but for the last of a role.

    Raises:
        InputError: a file cannot be read, or the folder has no roles of LEAST_CHARACTERS.
    """
    examples = [
        (role, text[first : first + LENGTH])
        for role, text in roles_of(folder).items()
        if len(text) >= LEAST_CHARACTERS
        for first in range(0, len(text), LENGTH)
    ]
    if not examples:
        raise InputError(
            f"{str(folder)!r} has no role of {LEAST_CHARACTERS} characters: a speech begins with a "
            "name in capitals, and a tab or full stop; name a folder of such plays"
        )
    return examples


def _content(file: Path) -> str:
    try:
        return decode_text(read_regular_file(file, MOST_BYTES))
    except (OSError, ValueError) as error:
        raise InputError(
            f"play {str(file)!r} cannot be read ({error}); name a folder of UTF-8 texts"
        ) from None


def _lines_of(play: str) -> Iterator[tuple[str, str]]:
    """Yields (role, line) of the lines that are spoken."""
    title = next((line.strip() for line in play.splitlines() if line.strip()), "")
    start = _FIRST_ACT.search(play)
    # A stage direction may take several lines, so they go before lines are looked at.
    spoken = _DIRECTION.sub("", play[start.end() if start is not None else 0 :])
    role = ""
    for line in spoken.splitlines():
        if not line.strip() or line.strip() == title or _HEADING.match(line):
            # A direction leaves an empty line within a speech, a heading ends it.
            role = role if line.startswith("\t") and not line.strip() else ""
            continue
        speech = _SPEECH.fullmatch(line)
        if speech is not None:
            role, line = speech[1].strip(), speech[2]
        if role and line.strip():
            yield role, line.strip()
