"""Listener of a search that Ctrl-C ends with the best result so far."""

import signal
from collections.abc import Callable
from typing import Any, Self


class Search:
    """Listener of a search, which ends with its best result so far at the first interrupt.

    The search ends at its next line of progress. A second interrupt does not wait for that.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.is_interrupted = False
        self._show = show
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            # A background job of a shell ignores SIGINT, and must continue to.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        self.is_interrupted = True
        # The next interrupt ends the process, as in every other command.
        self.__exit__()

    def __call__(self, line: str) -> None:
        self._show(line)
        if self.is_interrupted:
            # The optimizers end with the best result so far.
            raise StopIteration
