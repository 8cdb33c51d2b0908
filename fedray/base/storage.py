"""Places of files: paths of this machine, `file://` URIs of them, and buckets (`s3://`, `gs://`)."""

import atexit
import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

from fedray.base.errors import FedrayError, InputError, RunFailed

# A Path has one slash where the URI that it was made from had two.
_URI = re.compile(r"([A-Za-z][\w+.-]+):/+(.*)", re.DOTALL)
_AT_ONCE = 8
"""Number of objects that are copied at a time, because each waits for the network."""
COPIES = contextlib.ExitStack()
"""Removes the copies that `fetched` made; closed when the process ends."""
atexit.register(COPIES.close)


def local_path(place: str | Path) -> Path:
    """Returns the path of a `place` on this machine: a path, or a `file://` URI. Raises InputError
    for any other URI, of which a path would make a folder with a colon."""
    if (found := _URI.fullmatch(str(place))) is None:
        return Path(place)
    scheme, rest = found[1].lower(), found[2]
    if scheme != "file":
        raise InputError(
            f"'{scheme}://{rest}' is not on this machine, and only local files can be used here; "
            "name a path or a file:// URI"
        )
    return Path(f"/{unquote(rest)}")


def is_of_bucket(place: object) -> bool:
    """Whether a `place` is the URI of a bucket."""
    found = _URI.fullmatch(str(place))
    return found is not None and found[1].lower() in ("s3", "gs")


def fetched(place: str | Path, suffix: str = "") -> Path:
    """Returns a path to read a place by: of a folder in a bucket that of a copy, which is removed
    when the process ends.

    Args:
        place: a path, or a URI.
        suffix: end of the names to copy; empty for all.

    Raises:
        InputError: the place is another machine's, or cannot be read.
    """
    if not is_of_bucket(place):
        return local_path(place)
    bucket = Bucket(place)
    names = [name for name in bucket.files("/") if name.endswith(suffix)]
    if not names:
        raise InputError(
            f"{bucket.name} has no such files; check the name (an unfinished run has none there)"
        )
    folder = Path(COPIES.enter_context(tempfile.TemporaryDirectory(prefix="fedray-")))
    copy = folder / bucket.name.rpartition("/")[2]
    bucket.fetch({name: Path(f"{copy}{name}") for name in names})
    return copy


class Bucket:
    """A place in a bucket, by Arrow's client, which takes credentials from where the tools of the
    bucket's owner do. An object is replaced whole or not at all.

    Objects are named by what follows the place's own name, such as `/run.json`.

    Args:
        uri: URI of the place; its query may have options of the client, such as `region`.

    uri: the same, without a password.
    name: the same, without options too.
    """

    def __init__(self, uri: str | Path) -> None:
        import pyarrow.fs  # takes 0.1 s, which local runs need not pay

        found = _URI.fullmatch(str(uri))
        assert found is not None
        scheme, rest = found[1].lower(), found[2]
        self.uri = self.name = re.sub("://[^/?]*:[^/?]*@", "://", f"{scheme}://{rest}")
        with self._asked("cannot be used", InputError):
            self._files, self._root = pyarrow.fs.FileSystem.from_uri(f"{scheme}://{rest}")
        self.name = f"{scheme}://{self._root}"
        self._selector = pyarrow.fs.FileSelector

    def files(self, folder: str) -> list[str]:
        """Returns the names of all objects in a `folder`, such as `/`; none if it does not exist.
        Raises InputError."""
        with self._asked("cannot be listed", InputError):
            wanted = self._selector(
                f"{self._root}{folder}".rstrip("/"), allow_not_found=True, recursive=True
            )
            found = self._files.get_file_info(wanted)
        return [each.path[len(self._root) :] for each in found if each.is_file]

    def fetch(self, files: Mapping[str, Path]) -> None:
        """Copies objects to the `files` of their names. Raises InputError."""
        _in_threads(self._fetch, files)

    def _fetch(self, name: str, file: Path) -> None:
        # An object may have any name, and a path may lead anywhere.
        if ".." in name.split("/"):
            raise InputError(f"{self.name}{name} has '..' in its name; remove it")
        with self._asked(f"cannot be read at {name}", InputError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with (
                self._files.open_input_stream(f"{self._root}{name}") as found,
                file.open("wb") as to,
            ):
                shutil.copyfileobj(found, to, 1 << 22)

    def put(self, files: Mapping[str, Path]) -> None:
        """Writes objects by name from `files`; those that vanished are left out. Raises
        RunFailed."""
        _in_threads(self._put, files)

    def _put(self, name: str, file: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.write(name, file.read_bytes())

    def write(self, name: str, content: bytes, error: type[FedrayError] = RunFailed) -> None:
        """Writes an object whole or not at all. Raises `error`."""
        with self._asked(f"cannot be written at {name}", error):
            stream = self._files.open_output_stream(f"{self._root}{name}")
            # Not in a `with`: closing makes the object, which an error must not.
            stream.write(content)
            stream.close()

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects, and folders, whose names end with a slash. Raises RunFailed."""
        for name in names:
            with (
                self._asked(f"cannot be removed at {name}", RunFailed),
                contextlib.suppress(FileNotFoundError),
            ):
                remove = self._files.delete_dir if name.endswith("/") else self._files.delete_file
                remove(f"{self._root}{name}".rstrip("/"))

    @contextlib.contextmanager
    def _asked(self, problem: str, error: type[FedrayError]) -> Iterator[None]:
        try:
            yield
        # Arrow's errors are of these classes, or of others that inherit from them.
        except (OSError, ValueError, NotImplementedError) as reason:
            text = " ".join(str(reason).split())
            raise error(
                f"{self.name} {problem} ({text}); check the URI, the credentials and the network"
            ) from None


def _in_threads(copy: Callable[[str, Path], None], files: Mapping[str, Path]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(copy, files.keys(), files.values()):
            pass
