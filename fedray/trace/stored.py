"""A run whose output is in a bucket: it is written on this machine, and copied.

    BUCKET/NAME.partial/...            what `resume` needs of the unfinished run
    BUCKET/NAME.training.partial/...   the same of its training
    BUCKET/NAME/...                    the finished run, whose document is written last

The names are those on a disk, except that the documents of complete traces stay in NAME.partial
until their models are trained. A thread copies files that changed; all of them were renamed when
they were whole, so each object is whole too. Parts of a trace are copied once it is complete,
because `resume` makes them again.
"""

import contextlib
import io
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from fedray.base.errors import CheckpointError, FedrayError, InputError, RunFailed
from fedray.base.storage import Bucket
from fedray.trace.checkpoints import CHECKPOINTS
from fedray.trace.partial import LOCK_FILE, MARK, TOKEN_FILE
from fedray.trace.schema import PARTICIPATIONS, RUN_FILE
from fedray.trace.several_tasks import TASKS_FILE
from fedray.trace.trained import LIVE_TRAINING, TRAINING, TRAINING_FILE

SECONDS_BETWEEN = 2.0
"""Time between two looks for files that changed, seconds."""
_DOCUMENTS = (TRAINING_FILE, RUN_FILE, TASKS_FILE)
"""Files that make a result readable."""
_PARTIAL = ".partial"
_FOLDERS = (f"{_PARTIAL}/", f"{LIVE_TRAINING}/")


class StoredRun:
    """A context of a run whose output is in a bucket.

    Args:
        bucket: place of the output.
        is_resumed: whether the unfinished run that is there continues.
        may_start: whether a run starts if none is there that could continue, and a complete one is
            opened.

    directory: `out` of the run on this machine, which is removed once the bucket has everything.
    uri: URI of the output.

    Raises:
        InputError: the bucket cannot be used, or has a run of this name.
        CheckpointError: the bucket has no unfinished run of this name.
    """

    def __init__(self, bucket: Bucket, is_resumed: bool, *, may_start: bool = False) -> None:
        self.uri, self._bucket = bucket.uri, bucket
        if "/" not in bucket.name.partition("://")[2]:
            raise InputError(f"{bucket.name} is a whole bucket; name a folder in it")
        finished = bucket.files("/")
        is_done = not {f"/{RUN_FILE}", f"/{TASKS_FILE}"}.isdisjoint(finished)
        is_opened = is_done and is_resumed and may_start
        unfinished = [*bucket.files(f"{_PARTIAL}/"), *bucket.files(f"{LIVE_TRAINING}/")]
        is_simulated = bool({f"{_PARTIAL}/{RUN_FILE}", f"{_PARTIAL}/{TASKS_FILE}"} & {*unfinished})
        has_checkpoint = any(each.startswith(f"{_PARTIAL}/{CHECKPOINTS}/") for each in unfinished)
        can_resume = (is_simulated or has_checkpoint) and not is_done
        is_own = f"{_PARTIAL}/{TOKEN_FILE}" in unfinished and not is_done
        is_resumed = is_resumed and (can_resume or is_done or not may_start)
        if is_resumed and not (can_resume or is_opened):
            found = "is complete" if is_done else "has no unfinished run with a checkpoint"
            raise CheckpointError(f"{bucket.name} {found}; give the URI of an interrupted run")
        if not is_resumed and (can_resume or (finished and not is_own)):
            found = "has an unfinished run; resume it" if can_resume else "exists already"
            raise InputError(f"output {bucket.name} {found}, or give another, or remove it")
        self._folder = Path(tempfile.mkdtemp(prefix="fedray-"))
        self.directory = self._folder / bucket.name.rpartition("/")[2]
        try:
            if is_resumed:
                # A model is finished again from its last checkpoint.
                traces = [each for each in finished if f"/{TRAINING}/" not in each]
                wanted = [*unfinished, *traces] if is_simulated else unfinished
                wanted = finished if is_opened else wanted
                bucket.fetch({each: self._file(each, is_simulated) for each in wanted})
            else:
                if finished or unfinished:
                    bucket.remove([*finished, *_FOLDERS])
                # A bucket that refuses this would refuse the result of the run too.
                bucket.write(f"{_PARTIAL}/{TOKEN_FILE}", MARK.encode(), InputError)
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        self._copied = self._unfinished()
        """Objects of the unfinished run, with what identifies the file that each was made from."""
        self._problem = ""
        self._is_published = self._is_kept = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="copies", daemon=True)

    def _file(self, name: str, is_simulated: bool) -> Path:
        """Returns the file here of an object of the unfinished run."""
        is_complete = is_simulated and name.rpartition("/")[2] in _DOCUMENTS
        return Path(f"{self.directory}{name.removeprefix(_PARTIAL) if is_complete else name}")

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
        text = str(error) if self._is_kept else self._renamed(str(error))
        if not (self._is_published or self._is_kept):
            try:
                # Nothing is left of a run that was refused, or that would starve again.
                if self.directory.exists() or self._unfinished():
                    self._copy_changed()
                else:
                    self._bucket.remove(_FOLDERS)
            except FedrayError as problem:
                self._is_kept, text = True, f"{error}; it is not in the bucket: {problem}"
        if isinstance(error, FedrayError | KeyboardInterrupt) and str(error):
            error.args = (text,)
        if not self._is_kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def publish(self) -> None:
        """Copies the finished run, its document last, and removes what was unfinished. Raises
        RunFailed; the run then stays on this machine."""
        self._stop()
        files = {self._name(each): each for each in self.directory.rglob("*") if each.is_file()}
        try:
            self._put(files)
        except FedrayError as error:
            self._is_kept = True
            raise RunFailed(
                f"the run is complete in {str(self.directory)!r} but not in the bucket: {error}; "
                f"copy that folder there, its {RUN_FILE} or {TASKS_FILE} last"
            ) from None
        self._is_published = True
        left = [each for each in self._bucket.files("/") if each not in files]
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
        """Copies what changed since the last time. Raises RunFailed."""
        earlier, now = self._unfinished(), self._unfinished()
        # A checkpoint that was there earlier names only files that are there now.
        changed = {
            name: each
            for name, each in now.items()
            if self._copied.get(name) != each and (name in earlier or not _names_others(each[0]))
        }
        self._put({name: file for name, (file, _) in changed.items()})
        self._copied |= changed
        # What is left of a folder that has its final name now is needed until the run is published.
        gone = [
            name
            for name, (file, _) in self._copied.items()
            if name not in now and file.parent.is_dir()
        ]
        self._bucket.remove(gone)
        for name in gone:
            del self._copied[name]

    def _put(self, files: Mapping[str, Path]) -> None:
        """Writes objects: after all others those that name them, of the whole run last."""
        naming = [name for name, file in files.items() if _names_others(file)]
        self._bucket.put({name: files[name] for name in files.keys() - {*naming}})
        for name in sorted(naming, key=lambda name: -name.count("/")):
            self._bucket.put({name: files[name]})

    def _unfinished(self) -> dict[str, tuple[Path, tuple[int, ...]]]:
        """Returns the objects that `resume` needs, each with its file, and with figures that change
        whenever the file does."""
        walked = list(os.walk(self._folder))
        # Then the traces are complete, and models are still in training.
        has_live = any(folder.endswith(LIVE_TRAINING) for folder, _, _ in walked)
        found = {}
        for file in (Path(folder, each) for folder, _, names in walked for each in names):
            name = self._name(file)
            is_partial, is_document = f"{_PARTIAL}/" in name, file.name in _DOCUMENTS
            is_left_out = (
                is_document or f"/{PARTICIPATIONS}/" in name if is_partial else not has_live
            )
            # Hidden files are being written.
            is_own = file.name.startswith(".") or file.name == LOCK_FILE
            if is_left_out or is_own or f"/{TRAINING}/" in name:
                continue
            with contextlib.suppress(FileNotFoundError):
                stat = file.stat()
                name = f"{_PARTIAL}{name}" if is_document else name
                found[name] = file, (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return found

    def _name(self, file: Path) -> str:
        return str(file)[len(str(self.directory)) :]


def _names_others(file: Path) -> bool:
    return file.parent.name == CHECKPOINTS or file.name in _DOCUMENTS
