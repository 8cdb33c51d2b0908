"""The privacy that a run has spent so far, for its own line of progress."""

import time
from pathlib import Path

from fedray.base.errors import InputError
from fedray.base.rounding import fine, up
from fedray.trace.partial import partial_directory
from fedray.watch.entries import Runs

SECONDS_BETWEEN = 2.0
"""Shortest time between two looks at the files of the run."""


class SpentSoFar:
    """Upper bounds on the privacy that a run has spent, as text.

    They are computed in a thread, at most for a twentieth of the time, so they may be those of an
    earlier round, which the text names. A run of several tasks has none.

    Args:
        directory: directory that the run will have.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._runs: Runs | None = None
        self._text, self._next = "", 0.0

    def __call__(self) -> str:
        """Returns the latest known bounds; empty before the first."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SECONDS_BETWEEN
            self._look()
        return self._text

    def _look(self) -> None:
        partial = partial_directory(self._directory)
        folder = partial if partial.exists() else self._directory
        try:
            self._runs = self._runs or Runs(folder.parent)
        except InputError:
            return  # the run has not made its directory yet
        entry = self._runs.entry(Path(folder).absolute())
        privacy = None if entry is None else entry.privacy
        if privacy is not None and privacy.epsilon is not None:
            rho = "" if privacy.rho is None else f", rho {fine(privacy.rho)}"
            rounds = f"after {privacy.rounds:,} rounds"
            self._text = f"at most epsilon {up(privacy.epsilon)}{rho} {rounds}"
