"""Files that a table names and that are known by their content: they travel with traces."""

import hashlib
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from fedray.errors import InputError, shown
from fedray.table import Table


class ContentFile(Table):
    """A table that names a file, known by its content: looked for as `<sha256><suffix>`, as in
    traces, then as `file`.

    The validation context says where. `directory` is that of the scenario. `contents` has tables
    by digest whose files were read before. `is_recorded` says that the tables are those of a trace
    or run, which may be somebody else's. Two tables are equal if their contents are.
    """

    file: Annotated[str, Field(min_length=1)]
    """The file, relative to the scenario's directory."""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the content; filled in when the file is read, checked where given."""
    suffix: ClassVar[str]
    """Suffix of the file that holds `content`."""
    _content: bytes = PrivateAttr()
    _kept_as: Path | None = PrivateAttr(default=None)
    """Where the content was found if it came with a trace or run; None for a file that the user
    named."""

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
            is_kept = bool(self.sha256) and path.exists()
            path = path if is_kept else directory / self.file
            # A kept file is canonical already, and its digest is of exactly these bytes.
            content = path.read_bytes() if is_kept else self._canonical(path)
            # A recorded table may be somebody else's even where `file` itself is found.
            if is_kept or context.get("is_recorded"):
                self._kept_as = path
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

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _without_file(self) == _without_file(other)

    def __hash__(self) -> int:
        # Equal tables have equal digests, so this agrees with equality.
        return hash(self.sha256)


class PythonFile(ContentFile):
    """A table that names a Python file of the user's own. Nothing is run when it is read."""

    suffix: ClassVar[str] = ".py"
    table: ClassVar[str]
    """Name of the table in a scenario, for messages."""

    def demand_trust(self) -> None:
        """Raises InputError if the code came with a trace or run, so that it may be somebody
        else's."""
        # Whoever names a file in a scenario of their own trusts it by doing so.
        if self._kept_as is not None:
            raise InputError(
                f"{self.table}.file={shown(self.file)} is Python code that came with a trace or "
                f"run (sha256 {self.sha256}) and "
                f"would be executed here; read {str(self._kept_as)!r}, and give trust_code=True if "
                "you trust it"
            )

    def _canonical(self, path: Path) -> bytes:
        try:
            source = path.read_text(encoding="utf-8")
            # Compiling finds errors of syntax now, and executes nothing.
            compile(source, str(path), "exec")
        except (OSError, ValueError, SyntaxError) as error:
            raise ValueError(
                f"file={self.file!r} is no readable Python file ({error}); give one that defines it"
            ) from None
        # Reading as text has made all line ends alike, so the digest is the same on every system.
        return source.encode()


def _without_file(table: Any) -> dict[str, Any]:
    return table.model_dump(exclude={"file"})
