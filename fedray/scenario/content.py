"""Files that a table names and that are known by their content: they travel with traces."""

import contextlib
import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from fedray.base.errors import InputError, shown
from fedray.base.regular_file import check_regular_file, read_regular_file
from fedray.base.table import Table


class ContentFile(Table):
    """A table that names a file, and stands for its content. The file is looked up as
    `<sha256><suffix>`, as in traces, then as `file`; the table of a trace only names files in the
    trace.

    The validation context holds `directory`, the folder of the scenario; `contents`, earlier tables
    by digest, whose files are not read again; and `is_recorded`, whether the tables are those of a
    trace or run, perhaps a stranger's. Two tables are equal if their contents are.
    """

    file: Annotated[str, Field(min_length=1)]
    """The file, relative to the scenario's directory."""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the content; filled in when the file is read, checked where given."""
    suffix: ClassVar[str]
    """Suffix of the file that holds `content`."""
    most_bytes: ClassVar[int]
    """Largest file that is read, whole."""
    _content: bytes = PrivateAttr()
    _kept_as: Path | None = PrivateAttr(default=None)
    """Place of the content if it came with a trace or run; None if the user named the file."""

    @property
    def content(self) -> bytes:
        """The content in the form that traces carry and `sha256` is of."""
        return self._content

    @property
    def content_name(self) -> str:
        """Name under which traces carry the content."""
        return f"{self.sha256}{self.suffix}"

    @abstractmethod
    def _canonical(self, path: Path) -> bytes:
        """The content of a user's file. Raises ValueError."""

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        if (self.__pydantic_private__ or {}).get("_content") is not None:
            return self  # read already, and now made part of another value
        context: dict[str, Any] = info.context or {}
        # A copy with overrides finds its content here, although the file may be gone by now.
        known = context.get("contents", {}).get(self.sha256)
        if known is not None:
            # The place goes along, so that copying does not make foreign code trusted.
            content, self._kept_as = known._content, known._kept_as
        else:
            directory = Path(context.get("directory", "."))
            # In a trace's folder only the name by content is sure, so it is tried first.
            path = directory / self.content_name
            # A stranger's trace could name any file of this machine, so `file` is not tried then.
            if context.get("is_recorded") or (self.sha256 and os.path.exists(path)):
                # A kept file is canonical already, and its digest is of exactly these bytes.
                content = self._read_file(path, inside=directory)
                self._kept_as = path
            else:
                content = self._canonical(directory / self.file)
        # The digest is checked in either case, since a file in a trace can be damaged or exchanged.
        digest = hashlib.sha256(content).hexdigest()
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"file={self.file!r} has another content (sha256 {digest}) than the one named; "
                "find that one"
            )
        self._content = content
        object.__setattr__(self, "sha256", digest)  # frozen, and not yet handed out
        return self

    def _check_file(self, path: Path) -> None:
        """Checks a user's file that a library reads whole. Raises ValueError."""
        with self._told(path):
            check_regular_file(path, most_bytes=self.most_bytes)

    def _read_file(self, path: Path, inside: Path | None = None) -> bytes:
        """Content of a file within the bounds of this table. Raises ValueError."""
        with self._told(path):
            return read_regular_file(path, self.most_bytes, inside=inside)

    @contextlib.contextmanager
    def _told(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"file={self.file!r} cannot be read at {str(path)!r} "
                f"({error.strerror or error}); bring the file there"
            ) from None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _without_file(self) == _without_file(other)

    def __hash__(self) -> int:
        # Equal tables have equal digests, so this agrees with equality.
        return hash(self.sha256)


class PythonFile(ContentFile):
    """A table that names a Python file of the user's own. Nothing is run when it is read."""

    suffix: ClassVar[str] = ".py"
    most_bytes: ClassVar[int] = 1 << 20
    table: ClassVar[str]
    """Name of the table in a scenario, for messages."""

    def demand_trust(self) -> None:
        """Raises InputError for code that came with a trace or run, perhaps a stranger's."""
        # Whoever names a file in a scenario of their own trusts it by doing so.
        if self._kept_as is not None:
            raise InputError(
                f"{self.table}.file={shown(self.file)} is Python code that came with a trace or "
                f"run (sha256 {self.sha256}) and "
                f"would be executed here; read {str(self._kept_as)!r}, and give `trust_code=True` "
                "if you trust it"
            )

    def _canonical(self, path: Path) -> bytes:
        content = self._read_file(path)
        self.compiled(content)
        # All line ends are made alike, so the digest is the same on every system.
        return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def compiled(self, content: bytes) -> CodeType:
        """The code of a `content`, which is not run.

        Raises:
            ValueError: it is not Python.
        """
        try:
            # Decoded here, because a file could declare another encoding, such as a compression.
            return compile(content.decode("utf-8"), self.file, "exec")
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            # The parser's MemoryError, for nesting beyond its stack, has no text.
            reason = str(error) or "it is nested too deeply"
            raise ValueError(
                f"file={self.file!r} is no readable Python file ({reason}); give one that defines "
                "it"
            ) from None


def _without_file(table: Any) -> dict[str, Any]:
    return table.model_dump(exclude={"file"})
