"""History of a claim: a file of JSON Lines with one line for each night on which it was judged."""

import itertools
import json
from datetime import date
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from fedray.audit.live.outlook import Night
from fedray.base.atomic import write_output
from fedray.base.errors import InputError, one_line
from fedray.base.parsing import decode_text
from fedray.base.regular_file import read_input

_NIGHT = TypeAdapter(Night)


class History(NamedTuple):
    """Nights of a history."""

    nights: tuple[Night, ...]
    """All nights, in order."""
    lines: tuple[str, ...]
    """The line of each."""

    def write(self, file: Path) -> None:
        """Writes the history whole or not at all. Raises InputError."""
        content = "".join(f"{each}\n" for each in self.lines)
        write_output(file, content.encode(), f"history {str(file)!r}")


def history_with(file: Path, night: Night) -> History:
    """Returns the history of a file with a night. It takes the place of a line of the same night
    with the same state, claim and rules in force; others of that night stay.

    Args:
        file: the history; it may be missing.
        night: the new line.

    Raises:
        InputError: the file cannot be read, or is the history of another deployment.
    """
    # Other lines stay as they are, keys of a later release included.
    lines = [each for each in _read(file) if _judgement(each[0]) != _judgement(night)]
    lines.append((night, json.dumps(night.to_json(), allow_nan=False)))
    # A sort is stable, so lines of one night stay in order.
    lines.sort(key=lambda each: each[0].night)
    nights = tuple(each for each, _ in lines)
    for earlier, later in itertools.pairwise(nights):
        if night not in (earlier, later):
            continue
        if later.released < earlier.released:
            reason = (
                f"has {earlier.released:,} rounds on {earlier.night} and {later.released:,} on "
                f"{later.night}, but a log that grows loses none"
            )
            raise _refused(file, reason)
        if later.delta != earlier.delta:
            reason = (
                f"has delta {earlier.delta:g} on {earlier.night} and {later.delta:g} on "
                f"{later.night}, so that its epsilons cannot be compared"
            )
            raise _refused(file, reason)
    return History(nights, tuple(line for _, line in lines))


def _judgement(night: Night) -> tuple[object, ...]:
    return night.night, night.state, night.claim, frozenset(night.rules)


def _read(file: Path) -> list[tuple[Night, str]]:
    """Returns the nights of a history, each with its line; none if it is missing."""
    if not file.exists():
        return []
    try:
        lines = decode_text(read_input(file)).splitlines()
    except (OSError, ValueError) as error:
        raise _refused(file, f"cannot be read ({one_line(str(error))})") from None
    nights = []
    for number, line in enumerate(lines, 1):
        try:
            night = _NIGHT.validate_json(line)
            date.fromisoformat(night.night)
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, wrong["loc"])) or "the line"
            reason = f"has a wrong line {number} ({place}: {one_line(wrong['msg'])})"
            raise _refused(file, reason) from None
        except ValueError as error:
            raise _refused(file, f"has a wrong line {number} ({error})") from None
        nights.append((night, line))
    return nights


def _refused(file: Path, reason: str) -> InputError:
    return InputError.of("history", str(file), reason, "name another file")
