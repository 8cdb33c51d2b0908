"""Files that a table names, identified by their content and stored with traces."""

import ast
import contextlib
import hashlib
import json
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from fedray.base.errors import InputError, shown
from fedray.base.kept import cache_folder
from fedray.base.parsing import decode_text
from fedray.base.regular_file import check_regular_file, read_regular_file
from fedray.base.table import Table
from fedray.scenario.data_file import without_places

_BESIDE = b"# This file imports a file beside it, which follows: "
T = TypeVar("T")


class ContentFile(Table):
    """A table that names a file and represents its content. The file is looked up as
    `<sha256><suffix>`, the name in traces, then as `file`; a table of a trace is looked up only in
    the trace.

    The validation context holds `directory`, the folder of the scenario; `contents`, earlier tables
    by digest, whose files are not read again; and `is_recorded`, whether the tables come from a
    trace or run, which may be a stranger's. Two tables are equal if their contents are.
    """

    file: Annotated[str, Field(min_length=1)]
    """The file, relative to the scenario's directory."""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the content; filled in when the file is read, and checked if given."""
    suffix: ClassVar[str]
    """Suffix of the file that holds `content`."""
    most_bytes: ClassVar[int]
    """Largest size of a file that is read."""
    _content: bytes = PrivateAttr()
    _kept_as: Path | None = PrivateAttr(default=None)
    """Path of the content if it came with a trace or run; None if the user named the file."""

    @property
    def content(self) -> bytes:
        """The content as traces store it; `sha256` is its digest."""
        return self._content

    @property
    def content_name(self) -> str:
        """File name under which traces store the content."""
        return f"{self.sha256}{self.suffix}"

    @abstractmethod
    def _canonical(self, path: Path) -> bytes:
        """Returns the content of a user's file in the form that traces store. Raises ValueError."""

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        if (self.__pydantic_private__ or {}).get("_content") is not None:
            return self  # read already, and now made part of another value
        context: dict[str, Any] = info.context or {}
        # A copy with overrides finds its content here, although the file may be gone by now.
        known = context.get("contents", {}).get(self.sha256)
        if known is not None:
            # The path is copied too, so that copying does not make foreign code trusted.
            content, self._kept_as = known._content, known._kept_as
        else:
            directory = Path(context.get("directory", "."))
            # In a trace's folder only the name by content is certain, so it is tried first.
            path = directory / self.content_name
            # A stranger's trace could name any file of this machine, so `file` is not tried then.
            if context.get("is_recorded") or (self.sha256 and os.path.exists(path)):
                # A stored file is canonical already, and the digest is that of exactly these bytes.
                content = self._read_file(path, inside=directory)
                self._kept_as = path
            else:
                content = self._canonical(directory / self.file)
        # The digest is checked in either case, since a file in a trace can be damaged or replaced.
        digest = hashlib.sha256(content).hexdigest()
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"file={self.file!r} has the sha256 {digest}, not the given one; use the file with "
                f"sha256 {self.sha256}"
            )
        self._content = content
        object.__setattr__(self, "sha256", digest)  # frozen, and not yet handed out
        return self

    def _check_file(self, path: Path) -> None:
        """Checks that a library may read a user's file whole. Raises ValueError."""
        with self._told(path):
            check_regular_file(path, most_bytes=self.most_bytes)

    def _read_file(self, path: Path, inside: Path | None = None) -> bytes:
        """Returns the content of a file of at most `most_bytes`. Raises ValueError."""
        with self._told(path):
            return read_regular_file(path, self.most_bytes, inside=inside)

    @contextlib.contextmanager
    def _told(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"file={self.file!r} cannot be read at {str(path)!r} ({error.strerror or error}); "
                "put a readable file there"
            ) from None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and without_places(self) == without_places(other)

    def __hash__(self) -> int:
        # Equal tables have equal digests, so this agrees with equality.
        return hash(self.sha256)


class PythonFile(ContentFile):
    """A table that names a user's Python file. Reading the table does not run the file.

    The content ends with the files of the same folder that it imports, as comments.

    A note of trust is an empty file in the user's cache, named by the digest of the whole table,
    since another function or other parameters could do something else.
    """

    suffix: ClassVar[str] = ".py"
    most_bytes: ClassVar[int] = 1 << 20
    table: ClassVar[str]
    """Name of the table in a scenario, for messages."""

    def remember(self) -> None:
        """Notes in the user's cache that they run this table of theirs, so that traces of it need
        no trust. Code that came with a trace or run is not noted."""
        if self._kept_as is not None:
            return
        with contextlib.suppress(OSError):
            self._trusted.parent.mkdir(parents=True, exist_ok=True)
            self._trusted.touch()

    @property
    def _trusted(self) -> Path:
        table = json.dumps([self.table, without_places(self)], sort_keys=True)
        return cache_folder("trusted") / hashlib.sha256(table.encode()).hexdigest()

    def demand_trust(self) -> None:
        """Raises InputError if the code came with a trace or run, which may be a stranger's, unless
        this user has run it before."""
        # Whoever names a file in a scenario of their own trusts it by doing so.
        if self._kept_as is not None and not self._trusted.exists():
            raise InputError(
                f"{self.table}.file={shown(self.file)} is Python code that came with a trace or "
                f"run (sha256 {self.sha256}) and would be executed here; read "
                f"{str(self._kept_as)!r}, and pass `trust_code=True` if you trust it"
            )

    def _canonical(self, path: Path) -> bytes:
        found: dict[str, bytes] = {}
        waiting = [path]
        for each in waiting:
            # Line ends are normalised, so that the digest is the same on every system.
            content = self._read_file(each).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            found[each.stem] = content
            names = _imported(self._checked(content, str(each), ast.parse))
            beside = [path.with_name(f"{name}.py") for name in sorted(names)]
            waiting += [file for file in beside if file.is_file() and file not in waiting]
        whole = found.pop(path.stem)
        for name, content in found.items():
            lines = [b"#|" + line for line in content.split(b"\n")]
            whole += b"\n".join([b"", _BESIDE + name.encode(), *lines])
        return whole

    @property
    def beside(self) -> dict[str, CodeType]:
        """Code of the files beside it that it imports, by the name of the module."""
        _, *parts = self.content.split(b"\n" + _BESIDE)
        codes = {}
        for name, *lines in (part.split(b"\n") for part in parts):
            content = b"\n".join(line.removeprefix(b"#|") for line in lines)
            codes[name.decode()] = self._checked(content, f"{name.decode()}.py", compile, "exec")
        return codes

    def compiled(self) -> CodeType:
        """Compiles the content without running it. Raises ValueError if it is not Python."""
        return self._checked(self.content, self.file, compile, "exec")

    def _checked(self, content: bytes, file: str, parse: Callable[..., T], *arguments: str) -> T:
        try:
            # Decoded here, because a file could declare another encoding, such as a compression.
            return parse(decode_text(content), file, *arguments)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            # The parser's MemoryError, for nesting beyond its stack, has no text.
            reason = str(error) or "it is nested too deeply"
            raise ValueError(
                f"file={file!r} is not a readable Python file ({reason}); correct it, or name "
                "another file"
            ) from None


def _imported(tree: ast.Module) -> set[str]:
    """Returns the modules that a file may import from its own folder."""
    names: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            names.update(alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and not each.level:
            names.add(str(each.module))
    return names - sys.stdlib_module_names
