"""The source of Python's standard library as text: a module is a client, a line an example.

Modules differ much in their words, so the clients are not alike. Words are names, numbers, and
single signs; blank lines are not examples.
"""

import re
from collections.abc import Iterator, Sequence

from fedray.base.errors import InputError
from fedray.scenario.data import SourceCodeData
from fedray.scenario.standard_library import standard_library
from .reader import Client, ClientFile, Column, damage

_WORD = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")


class SourceCode(ClientFile):
    """Reads the modules of this Python by their names.

    Raises:
        InputError: they are not the modules of the table.
    """

    def __init__(self, table: SourceCodeData) -> None:
        library = standard_library()
        if library.digest != table.sha256:
            raise InputError.of(
                "data.sha256",
                table.sha256,
                f"is of another Python's standard library than this one ({library.digest})",
                "use that Python",
            )
        self._files = library.files

    def clients(self) -> Iterator[Client]:
        for name in self._files:
            yield Client("", name, len(self._lines(name)))

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        lines = [" ".join(_WORD.findall(line)) for line in self._lines(client.name)]
        # The table names a single column, `words`.
        return dict.fromkeys(columns, lines)

    def _lines(self, name: str) -> list[str]:
        with damage(f"module {name} cannot be read", OSError):
            text = self._files[name].read_text(encoding="utf-8-sig", errors="replace")
        return [line for line in text.splitlines() if line.strip()]
