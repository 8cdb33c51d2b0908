"""The privacy that a run has spent so far, for its own line of progress."""

import time
from pathlib import Path

from fedray.base.rounding import fine, up
from fedray.trace.partial import partial_directory
from fedray.watch.entries import entry_of

SECONDS_BETWEEN = 2.0
"""Shortest time between two looks at the files of the run."""
MOST_SHARE = 0.05
"""Largest share of the time that bounds may take, since some mechanisms take long."""


class SpentSoFar:
    """Upper bounds on the privacy that a run has spent, as text.

    The text names the round, which may be an earlier one. A run of several tasks has none.

    Args:
        directory: directory that the run will have.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._text, self._next = "", 0.0

    def __call__(self) -> str:
        """Returns the latest known bounds; empty before the first."""
        begun = time.monotonic()
        if begun >= self._next:
            self._look()
            taken = time.monotonic() - begun
            self._next = begun + max(SECONDS_BETWEEN, taken / MOST_SHARE)
        return self._text

    def _look(self) -> None:
        partial = partial_directory(self._directory)
        folder = partial if partial.exists() else self._directory
        entry = entry_of(folder, folder.parent)
        privacy = None if entry is None else entry.privacy
        if privacy is not None and privacy.epsilon is not None:
            rho = "" if privacy.rho is None else f", rho {fine(privacy.rho)}"
            rounds = f"after {privacy.rounds:,} rounds"
            self._text = f"at most epsilon {up(privacy.epsilon)}{rho} {rounds}"
