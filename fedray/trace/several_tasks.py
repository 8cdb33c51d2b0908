"""The traces of several tasks that share devices.

    DIRECTORY/
      tasks.json     scenario, tasks, the digest of each trace, and one of itself
      NAME/          the trace of the task with that name, as any other (fedray/trace/schema.py)
      report.html    the page of each device's privacy loss over all tasks, if one was written

run.json of each trace names its run in `task`: `name`, and the `scenario_digest` of the whole. Its
own scenario does not suffice to repeat the trace, since the other tasks are not in it.

Parts of all traces are cut at the same devices, so that a device's participations in every task can
be read part by part.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedray.base.errors import TraceCorrupt
from fedray.base.storage import fetched
from fedray.trace.files import DocumentForm
from fedray.trace.partial import PartialDirectory
from fedray.trace.reader import COPY_AGAIN, Trace

TASKS_FILE = "tasks.json"
TASKS_FORMAT = "fedray-tasks"
TASKS_VERSION = 1
_FORM = DocumentForm(
    TASKS_FILE,
    TASKS_FORMAT,
    TASKS_VERSION,
    {"digest": str, "written": str, "scenario": dict, "traces": list},
    "of a run of several tasks",
    COPY_AGAIN,
    "use the fedray release that wrote it, or run the scenario again",
)


def is_of_tasks(directory: str | Path) -> bool:
    """Whether a `directory` contains the traces of several tasks."""
    try:
        return (Path(directory) / TASKS_FILE).exists()
    except OSError:
        # A path that no directory can have contains no tasks.
        return False


@dataclass(frozen=True, slots=True)
class TasksRun:
    """An opened run of several tasks."""

    path: Path
    """Directory of the run."""
    document: dict[str, Any]
    """tasks.json."""
    traces: dict[str, Trace]
    """Traces of the tasks by name, in the order of the scenario."""

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Self:
        """Opens and validates tasks.json and every trace.

        Args:
            path: the directory.
            verify: whether documents, and columns when they are read, must have their digests.

        Raises:
            TraceError: the directory is not a run of several tasks.
            TraceCorrupt: a file is missing, damaged, changed, or belongs to another run.
            TraceVersion: another release of fedray wrote it.
        """
        directory = fetched(path)
        document = _read(directory, verify)
        traces: dict[str, Trace] = {}
        for entry in document["traces"]:
            name = entry["task"]
            trace = Trace.open(directory / name, verify)
            # A trace of another run is consistent in itself, so only this check reveals it.
            if trace.digest != entry["digest"]:
                named = f"but {TASKS_FILE} names {entry['digest'][:12]}"
                raise TraceCorrupt.at(
                    directory / name, f"is the trace {trace.digest[:12]}, {named}"
                )
            traces[name] = trace
        return cls(directory, document, traces)

    @property
    def digest(self) -> str:
        """Digest of the traces of all tasks together."""
        return self.document["digest"]

    def to_json(self) -> dict[str, Any]:
        """Returns tasks.json and the path as one JSON object."""
        return {"path": str(self.path), **self.document}

    def verify(self) -> None:
        """Recomputes every digest of every trace. Raises TraceCorrupt at the first difference."""
        for trace in self.traces.values():
            trace.verify()


class TasksWriter(PartialDirectory):
    """Writes the traces of several tasks.

    Args:
        directory: final path of the directory, which `finish` gives it.
        names: names of the tasks.
        is_resumed: whether a run that ended early continues.
    """

    def __init__(
        self, directory: str | Path, names: Sequence[str], *, is_resumed: bool = False
    ) -> None:
        super().__init__(directory, TASKS_FILE, is_resumed=is_resumed)
        # Traces are written only at the end, so a resumed run writes them again.
        for name in names:
            for path in (self.partial / name, self.partial / f"{name}.partial"):
                shutil.rmtree(path, ignore_errors=True)

    def forget_content(self, name: str) -> None:
        """Removes a file that `save_content` wrote for the run; each trace has its own copy.

        Args:
            name: name given to `save_content`.
        """
        (self.partial / name).unlink(missing_ok=True)

    def finish(self, traces: Mapping[str, Trace], run: Mapping[str, Any]) -> Path:
        """Writes tasks.json, then gives the directory its final name.

        Args:
            traces: traces of the tasks by name, which are in the directory.
            run: further keys of tasks.json.

        Returns:
            The directory's path.
        """
        entries = [
            {"task": name, "digest": trace.digest, "ended": trace.run["ended"]}
            for name, trace in traces.items()
        ]
        return self.publish(
            {
                "format": TASKS_FORMAT,
                "version": TASKS_VERSION,
                "digest": _digest_of(entries),
                **run,
                "traces": entries,
            }
        )


def _digest_of(entries: Sequence[Mapping[str, str]]) -> str:
    text = "\n".join(f"{each['task']}:{each['digest']}" for each in entries)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(directory: Path, verify: bool) -> dict[str, Any]:
    file = directory / TASKS_FILE
    document = _FORM.read(directory)
    _FORM.check(document, directory, verify)
    entries = document["traces"]
    is_listed = all(
        isinstance(each, dict) and all(isinstance(each.get(key), str) for key in ("task", "digest"))
        for each in entries
    )
    if not entries or not is_listed:
        raise TraceCorrupt.at(file, "names no traces")
    # Names become paths, so they must not lead out of the directory.
    names = [each["task"] for each in entries]
    if any("/" in name or name in (".", "..") for name in names) or len(set(names)) < len(names):
        raise TraceCorrupt.at(file, "names traces that are not folders next to it")
    return document
