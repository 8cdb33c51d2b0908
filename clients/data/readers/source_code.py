"""The source of Python's standard library as text: a module is a client, a line an example.

Modules differ much in their words, so the clients are not alike. Words are names, numbers, and
single signs; blank lines are no examples.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedray.base.errors import InputError
from fedray.clients.data.readers.reader import Client, Column, Damaged
from fedray.scenario.data import SourceCodeData
from fedray.scenario.standard_library import StandardLibrary, standard_library

_WORD = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")


class SourceCode:
    """Reads the modules as clients, by their names.

    See fedray.clients.data.readers.reader.ClientFile.

    Args:
        library: the modules.
    """

    def __init__(self, library: StandardLibrary) -> None:
        self._files = library.files

    @classmethod
    def of(cls, table: SourceCodeData, cache: Path) -> "SourceCode":
        """Finds this Python's modules; nothing of them is kept in the `cache`.

        Raises:
            InputError: they are not those of the `table`.
        """
        del cache
        library = standard_library()
        if library.digest != table.sha256:
            raise InputError.of(
                "data.sha256",
                table.sha256,
                f"is of another Python's standard library than this one ({library.digest})",
                "use that Python",
            )
        return cls(library)

    def clients(self) -> Iterator[Client]:
        """Every module, in the order of the library's list."""
        for name in self._files:
            yield Client("", name, len(self._lines(name)))

    def gathered(self) -> None:
        """See ClientFile: a client has one place here."""

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """The lines of the module that is a `client`, as each of the `columns`.

        There is one column, `words`.
        """
        words_of_lines = (_WORD.findall(line) for line in self._lines(client.name))
        lines = [" ".join(words) for words in words_of_lines]
        return dict.fromkeys(columns, lines)

    def _lines(self, name: str) -> list[str]:
        """The lines of a module that are not blank, each of which has a word."""
        try:
            text = self._files[name].read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Damaged(f"module {name} cannot be read ({error.strerror or error})") from None
        return [line for line in text.splitlines() if line.strip()]
