"""Recognises what a file of rows is by its first bytes, and opens text through its compression.

Names of files play no part: `part-1`, `log.csv.1` and `log.parquet.gzip` are what they contain.
"""

import bz2
import errno
import io
import lzma
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

Content = Literal["Parquet", "JSON Lines", "CSV"]
HEAD_BYTES = 4096
_PARQUET = b"PAR1"
_PACKINGS = {
    b"\x1f\x8b": "gzip",
    # The second of each level is of an empty stream, which others may follow.
    **{b"BZh%d1AY&SY" % level: "bz2" for level in range(1, 10)},
    **{b"BZh%d\x17rE8P\x90" % level: "bz2" for level in range(1, 10)},
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\0": "xz",
}
"""Beginnings of compressed files, by pyarrow's names but for the last."""
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ),
}
"""Decompressors of one stream, where pyarrow does not read all."""
_READ_BYTES = 1 << 16
_BY_PYARROW = (
    'python -c "import pyarrow.{module} as m, pyarrow.parquet as p; '
    "p.write_table(m.{function}, '{stem}.parquet')\""
)
_ARROW = (
    "an Arrow or Feather file",
    _BY_PYARROW.format(module="feather", function="read_table('{name}')", stem="{stem}"),
)
_AVRO = "INSTALL avro; LOAD avro; COPY (FROM read_avro('{name}')) TO '{stem}.parquet'"
_OTHERS: dict[bytes, tuple[str, str]] = {
    b"SQLite format 3\0": (
        "a SQLite database",
        "sqlite3 -header -csv {name} 'SELECT * FROM TABLE' > {stem}.csv",
    ),
    b"ORC": (
        "an ORC file",
        _BY_PYARROW.format(module="orc", function="read_table('{name}')", stem="{stem}"),
    ),
    b"ARROW1\0\0": _ARROW,
    b"FEA1": _ARROW,
    b"\xff\xff\xff\xff": (
        "a stream of Arrow",
        _BY_PYARROW.format(
            module="ipc", function="open_stream('{name}').read_all()", stem="{stem}"
        ),
    ),
    b"Obj\x01": ("an Avro file", f'python -c "import duckdb; duckdb.execute(\\"{_AVRO}\\")"'),
    b"PK\x03\x04": ("a zip archive or a spreadsheet", "unzip {name}, or export it as CSV"),
    b"PARE": ("an encrypted Parquet file", "write it without encryption"),
    b"\xff\x06\0\0sNaPpY": ("compressed with snappy", "snzip -d {name}"),
}
"""Beginnings of files that are not read: what they are, and the command that converts them."""


class FileForm(NamedTuple):
    """What a file is."""

    content: Content
    """Format of its rows."""
    packing: str
    """Compression of the whole file; empty for none."""


def form_of(file: Path) -> FileForm:
    """Returns what a file is.

    Raises:
        OSError: it cannot be read, is empty, or has a format that is not read; `strerror` has a
            remedy.
        EOFError, lzma.LZMAError: it is cut off or damaged.
    """
    with file.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    packing = next((name for start, name in _PACKINGS.items() if head.startswith(start)), "")
    if packing:
        with unpacked(file, packing) as stream:
            head = stream.read(HEAD_BYTES)
    content = _content(head, file)
    if packing and content == "Parquet":
        raise _refused(f"it is Parquet inside {packing}; unpack it")
    return FileForm(content, packing)


def has_rows(file: Path) -> bool:
    """Returns whether a file has rows: more than the line of names of CSV. True for a file that
    cannot be read."""
    # The import takes a tenth of a second.
    import pyarrow.parquet as pq

    try:
        form = form_of(file)
        if form.content == "Parquet":
            return pq.read_metadata(file).num_rows > 0
        with unpacked(file, form.packing) as stream:
            head = stream.read(HEAD_BYTES)
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException):
        return True
    is_one_line = len(head) < HEAD_BYTES and len(head.strip().splitlines()) == 1
    return not is_one_line or form.content != "CSV"


def unpacked(file: Path, packing: str) -> pa.NativeFile:
    """Opens a file for reading through its compression.

    Args:
        file: path of the file.
        packing: its compression, as `form_of` returns it.

    Raises:
        OSError, EOFError, lzma.LZMAError: it is cut off or damaged; perhaps only when it is read.
    """
    if packing in _DECOMPRESSORS:
        return pa.PythonFile(io.BufferedReader(_Unpacked(file, _DECOMPRESSORS[packing])), "r")
    stream = pa.OSFile(str(file))
    return pa.CompressedInputStream(stream, packing) if packing else stream


class _Unpacked(io.RawIOBase):
    """Content of all streams of a compressed file, which may have zeros after each.

    Python's own readers end at such zeros without a word, and pyarrow's at an empty stream.
    """

    def __init__(self, file: Path, decompressor: Callable[[], Any]) -> None:
        self._file = file.open("rb")
        self._new = decompressor
        self._stream = decompressor()
        self._is_between = True
        """Whether no stream has begun since the last one ended."""
        self._rest = b""
        """Bytes of the file that no stream has taken yet."""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            if not self._rest and (self._is_between or self._stream.needs_input):
                self._rest = self._file.read(_READ_BYTES)
                if not self._rest and self._is_between:
                    return 0
                if not self._rest:
                    raise EOFError("it is cut off, or has other content at its end")
            if self._is_between:
                self._rest = self._rest.lstrip(b"\0")
                self._is_between = not self._rest
                continue
            found = self._stream.decompress(self._rest, len(buffer))
            self._rest = b""
            if self._stream.eof:
                self._rest, self._stream = self._stream.unused_data, self._new()
                self._is_between = True
            if found:
                buffer[: len(found)] = found
                return len(found)


def _content(head: bytes, file: Path) -> Content:
    if not head:
        raise _refused("it is empty; remove it")
    is_text = b"\0" not in head
    # A column of a CSV file may be called ORC or PARENT.
    if not is_text and head.startswith(_PARQUET):
        return "Parquet"
    text = head.removeprefix(b"\xef\xbb\xbf")
    # Without a mark, each Latin letter of UTF-16 has a null byte.
    is_wide = not is_text and any(head[:64:2]) != any(head[1:64:2])
    if is_wide or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise _refused("it is UTF-16; convert it to UTF-8, for example with iconv")
    for start, (what, command) in _OTHERS.items():
        if head.startswith(start) and not (is_text and start.isalnum()):
            raise _refused(f"it is {what}; convert it: {_command(command, file)}")
    if head[257:262] == b"ustar":
        raise _refused("it is a tar archive; unpack it into a folder")
    if not is_text:
        raise _refused("it is neither CSV, JSON Lines nor Parquet; unpack or convert it")
    begin = b"".join(text.split())[:2]
    if begin[:1] == b"{":
        return "JSON Lines"
    if begin in (b"[{", b"[]"):
        command = "jq -c '.[]' {name} > {stem}.jsonl"
        raise _refused(f"it is one JSON array; convert it: {_command(command, file)}")
    return "CSV"


def _refused(problem: str) -> OSError:
    return OSError(errno.EINVAL, problem)


def _command(command: str, file: Path) -> str:
    name = shlex.quote(file.name) if "python -c" not in command else file.name
    return command.format(name=name, stem=file.stem)
