"""A run whose output is in a bucket: it is written on this machine, and copied.

    BUCKET/NAME.partial/...            what `resume` needs of the unfinished run
    BUCKET/NAME.training.partial/...   the same of its training
    BUCKET/NAME/...                    the finished run, whose document is written last

The names are those on a disk. A thread copies files that changed; all of them were renamed when
they were whole, so each object is whole too. A checkpoint is copied after the journal that it
names. Parts of a trace are copied only once the run is finished, because `resume` makes them again.
"""

import contextlib
import io
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fedray.base.errors import CheckpointError, FedrayError, InputError, RunFailed
from fedray.base.storage import Bucket, is_of_bucket
from fedray.trace.checkpoints import CHECKPOINTS
from fedray.trace.partial import JOURNAL, LOCK_FILE, MARK, TOKEN_FILE
from fedray.trace.schema import RUN_FILE
from fedray.trace.several_tasks import TASKS_FILE
from fedray.trace.trained import TRAINING, TRAINING_FILE

SECONDS_BETWEEN = 2.0
"""Time between two looks for files that changed, seconds."""
_DOCUMENTS = (TRAINING_FILE, RUN_FILE, TASKS_FILE)
"""Files that make a result readable."""
_PARTIAL, _LIVE = ".partial", f".{TRAINING}.partial"
_FOLDERS = (f"{_PARTIAL}/", f"{_LIVE}/")


class LocalRun(contextlib.nullcontext["LocalRun"]):
    """A context of a run whose output is on this machine, which needs nothing more.

    directory: `out` of the run; None for one that is chosen later.
    """

    uri = None

    def __init__(self, directory: Path | None) -> None:
        super().__init__(self)
        self.directory = directory

    def publish(self) -> None:
        """Does nothing: the run is where it belongs."""

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that does nothing."""
        return contextlib.nullcontext()


class StoredRun:
    """A context of a run whose output is in a bucket.

    Args:
        bucket: place of the output.
        is_resumed: whether the unfinished run that is there continues.

    directory: `out` of the run on this machine, which is removed once the bucket has everything.
    uri: URI of the output.

    Raises:
        InputError: the bucket cannot be used, or has a run of this name.
        CheckpointError: the bucket has no unfinished run of this name.
    """

    def __init__(self, bucket: Bucket, is_resumed: bool) -> None:
        self.uri, self._bucket = bucket.uri, bucket
        if "/" not in bucket.name.partition("://")[2]:
            raise InputError(f"{bucket.name} is a whole bucket; name a folder in it")
        finished = bucket.files("/")
        unfinished = [*bucket.files(f"{_PARTIAL}/"), *bucket.files(f"{_LIVE}/")]
        has_checkpoint = any(each.startswith(f"{_PARTIAL}/{CHECKPOINTS}/") for each in unfinished)
        is_finished = f"/{RUN_FILE}" in finished or f"/{TASKS_FILE}" in finished
        if is_resumed and (is_finished or not has_checkpoint):
            found = "is complete" if is_finished else "has no unfinished run with a checkpoint"
            raise CheckpointError(f"{bucket.name} {found}; give the URI of an interrupted run")
        if not is_resumed and (finished or has_checkpoint):
            found = "has an unfinished run; resume it" if has_checkpoint else "exists already"
            raise InputError(f"output {bucket.name} {found}, or give another, or remove it")
        self._folder = Path(tempfile.mkdtemp(prefix="fedray-"))
        self.directory = self._folder / bucket.name.rpartition("/")[2]
        try:
            if is_resumed:
                bucket.fetch(unfinished, self.directory)
                # Tasks are trained inside their finished traces, which are made again.
                trainings = [each for each in finished if f"{_LIVE}/" in each]
                bucket.fetch(trainings, Path(f"{self.directory}{_PARTIAL}"))
            else:
                bucket.remove(_FOLDERS)
                # A bucket that refuses this would refuse the result of the run too.
                bucket.write(f"{_PARTIAL}/{TOKEN_FILE}", MARK.encode())
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        self._copied = self._unfinished()
        """Objects of the unfinished run, with what identifies the file that each was made from."""
        self._problem = ""
        self._is_published = self._is_kept = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="copies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()
        if not self._is_published:
            try:
                # Nothing is left of a run that was refused, or that would starve again.
                if self.directory.exists() or self._unfinished():
                    self._copy_changed()
                else:
                    self._bucket.remove(_FOLDERS)
            except FedrayError as problem:
                self._is_kept = True
                _say(error, f"{error}; it is not in the bucket: {problem}")
        if not self._is_kept:
            _say(error, self._renamed(str(error)))
            shutil.rmtree(self._folder, ignore_errors=True)

    def publish(self) -> None:
        """Copies the finished run, its document last, and removes what was unfinished. Raises
        RunFailed; the run then stays on this machine."""
        self._stop()
        files = [each for each in self.directory.rglob("*") if each.is_file()]
        # A run is readable once it has its document, and its tasks and model have their own.
        files.sort(key=lambda each: (each.name in _DOCUMENTS, -len(each.parts)))
        names = [f"/{each.relative_to(self.directory).as_posix()}" for each in files]
        documents = [each.name for each in files if each.name in _DOCUMENTS]
        try:
            self._bucket.put(names[: -len(documents)], self.directory)
            for name in names[-len(documents) :]:
                self._bucket.put([name], self.directory)
        except FedrayError as error:
            self._is_kept = True
            raise RunFailed(
                f"the run is complete in {str(self.directory)!r} but not in the bucket: {error}; "
                f"copy that folder there, {documents[-1]} last"
            ) from None
        self._is_published = True
        left = [each for each in self._bucket.files("/") if each not in names]
        self._bucket.remove([*left, *_FOLDERS])

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Within: what is printed names the bucket instead of `directory`."""
        text = io.StringIO()
        try:
            with contextlib.redirect_stdout(text):
                yield
        finally:
            sys.stdout.write(self._renamed(text.getvalue()))

    def _renamed(self, text: str) -> str:
        # A path that is given to an option needs the options of the URI.
        whole = text.replace(repr(str(self.directory)), repr(self.uri))
        return whole.replace(str(self.directory), self._bucket.name)

    def _stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._is_over.wait(SECONDS_BETWEEN):
            try:
                self._copy_changed()
                self._problem = ""
            except FedrayError as error:
                # The run goes on, and the next look tries again.
                if not self._problem:
                    logging.getLogger("fedray").warning("fedray: %s", error)
                self._problem = str(error)

    def _copy_changed(self) -> None:
        """Copies what changed since the last time, checkpoints last. Raises RunFailed."""
        earlier, now = self._unfinished(), self._unfinished()
        changed = [name for name, each in now.items() if self._copied.get(name) != each]
        checkpoints = [name for name in changed if f"/{CHECKPOINTS}/" in name]
        # The journal of a checkpoint that was there earlier is there now.
        for names in ({*changed} - {*checkpoints}, {*checkpoints} & {*earlier}):
            self._bucket.put(names, self.directory)
            self._copied |= {name: now[name] for name in names}
        # What is left of a folder that has its final name now is needed until the run is published.
        gone = [
            name
            for name in self._copied
            if name not in now and Path(f"{self.directory}{name}").parent.is_dir()
        ]
        self._bucket.remove(gone)
        for name in gone:
            del self._copied[name]

    def _unfinished(self) -> dict[str, tuple[int, ...]]:
        """Returns the files that `resume` needs, with what changes whenever they do."""
        found = {}
        own = (Path(f"{self.directory}{end}") for end in (_PARTIAL, _LIVE))
        for folder in (*own, *self.directory.glob(f"*{_LIVE}")):
            for pattern in ("*", f"{JOURNAL}/*", f"{CHECKPOINTS}/*"):
                for file in folder.glob(pattern):
                    is_own = file.name in (LOCK_FILE, TOKEN_FILE, *_DOCUMENTS)
                    # Hidden files are being written.
                    if is_own or file.name.startswith(".") or not file.is_file():
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        stat = file.stat()
                        name = str(file)[len(str(self.directory)) :]
                        found[name] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return found


def _say(error: BaseException | None, text: str) -> None:
    """Changes the message of an error that is for users."""
    if isinstance(error, FedrayError | KeyboardInterrupt) and str(error):
        error.args = (text,)


def stored_run(place: Path | None, *, is_resumed: bool) -> StoredRun | LocalRun:
    """Returns the context of a run whose output is at a place: a path, the URI of a bucket, or None
    for a path that is chosen later. Raises InputError; see `StoredRun`."""
    if place is None or not is_of_bucket(place):
        return LocalRun(place)
    return StoredRun(Bucket(place), is_resumed)
