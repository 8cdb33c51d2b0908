"""TensorBoard event files, written during a training."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.wire.messages import Progress, ProgressListener, TrainingProgress

OF_ROUNDS = {
    "train_loss": "Mean loss of a round's devices before they trained.",
    "clipped_share": "Share of a round's devices whose update was scaled down.",
}
"""Figures of every round: their names in metrics.parquet, and in words."""


@contextlib.contextmanager
def event_files(directory: Path | None) -> Iterator[ProgressListener]:
    """Yields a listener that writes the progress of a training into event files.

    Steps are rounds that the model was trained on. If a training continues from a checkpoint,
    rounds that were written before are written again, with the same values.

    Args:
        directory: folder of the new event file; None for none.

    Raises:
        ModuleNotFoundError: the extra `tensorboard` is not installed.
        InputError: the directory cannot be written.
    """
    if directory is None:
        yield lambda progress: None
        return
    # Imported before anything that takes long: the extra may be missing.
    from tensorboard.summary import Writer

    with _refused(directory):
        writer = Writer(str(directory))
        # A directory that cannot be written is found here, before anything that takes long.
        writer.flush()
    try:
        yield _Listener(writer, directory)
    finally:
        with _refused(directory):
            writer.close()


class _Listener:
    """Writes scalars."""

    def __init__(self, writer: Any, directory: Path) -> None:
        self._writer = writer
        self._directory = directory
        self._evaluated = 0
        """Number of rounds behind the last evaluation that was written."""

    def __call__(self, progress: Progress) -> None:
        if not isinstance(progress, TrainingProgress):
            return
        with _refused(self._directory):
            for name, words in OF_ROUNDS.items():
                value = getattr(progress.metrics, name)
                self._writer.add_scalar(name, value, progress.trained, description=words)
            # Every round repeats the last evaluation until there is a new one.
            if progress.evaluation is not None and progress.evaluated > self._evaluated:
                self._evaluated = progress.evaluated
                for name, measured in progress.evaluation.metrics.items():
                    tag, error = f"evaluation_{name}", f"evaluation_{name}_error"
                    self._writer.add_scalar(tag, measured.value, self._evaluated)
                    self._writer.add_scalar(error, measured.standard_error, self._evaluated)
            self._writer.flush()


@contextlib.contextmanager
def _refused(directory: Path) -> Iterator[None]:
    """Turns an OSError within the context into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError.of(
            "tensorboard",
            str(directory),
            f"cannot be written ({error.strerror or error})",
            "name another directory",
        ) from None
