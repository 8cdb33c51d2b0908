"""Exit codes of the command: 0 done, 1 a run failed, 2 bad usage or input, 130 interrupted, 141 the
reader of the output closed it."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import typer

from fedray.base.errors import FedrayError, InputError, one_line
from fedray.base.extras import missing_extra
from fedray.commands.frame.group import ClickError, Interrupted, UsageError

CLOSED_PIPE = 141
"""Exit code if the reader of the output closed it, as `head` does: never 1, which says that a claim
does not hold."""
INTERRUPTED = 130
"""Exit code after an interruption or a termination, as shells have it."""


def exit_code(command: Callable[[], Any]) -> int:
    """Runs a command, prints its error in one line, and returns its exit code."""
    try:
        code = command()
        # A full disk or a closed pipe may show only now.
        sys.stdout.flush()
        # Typer returns the code of an interruption.
        if code == INTERRUPTED:
            return _interrupted()
        return code if isinstance(code, int) else 0
    except SystemExit as done:  # Ray's handler of SIGTERM
        # Click turns a closed pipe into the code 1.
        if isinstance(done.__context__, BrokenPipeError):
            return _closed_pipe()
        return _interrupted() if done.code == signal.SIGTERM else int(done.code or 0)
    except Interrupted as interrupt:
        return _interrupted(str(interrupt))
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except FedrayError as error:
        return _failed(error)
    except ClickError as error:
        return _misused(error)
    except ModuleNotFoundError as error:
        lacks = missing_extra(error)
        # A missing package of no extra is a defect, which its traceback shows.
        if lacks is None:
            raise
        return _fail(str(lacks), 1)
    except BrokenPipeError:
        return _closed_pipe()
    except OSError as error:  # errors of files have their own messages
        _forget_output(sys.stdout)
        text = f"standard output or an input failed ({error}); free space, or choose another place"
        return _fail(text, 1)
    except MemoryError:
        return _fail("out of memory; close other programs or use a larger machine", 1)
    except Exception as error:
        if not _follows_interruption(error):
            raise
        return _interrupted()


def _failed(error: FedrayError) -> int:
    if not isinstance(error, InputError):
        return _fail(str(error), 1)
    # Each mistake of a file has its own line.
    for problem in error.problems or (str(error),):
        _fail(problem, 2)
    return 2


def _misused(error: Any) -> int:
    message = error.format_message()
    # The class may be that of typer's own click, so it is known by its name.
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message, err=True)
        return 2
    # Click ends sentences with a point, and the hint continues the line.
    if isinstance(error, UsageError):
        message = f"{message.rstrip('.')}; see --help"
    return _fail(message, 2)


def _follows_interruption(error: BaseException) -> bool:
    """Whether an interruption led to an error, as in a compilation that it cut off."""
    before = error.__context__
    return before is not None and (
        isinstance(before, KeyboardInterrupt) or _follows_interruption(before)
    )


def _interrupted(message: str = "") -> int:
    text = message or "interrupted; every file is either complete or not written"
    return _fail(text, INTERRUPTED)


def _closed_pipe() -> int:
    for stream in (sys.stdout, sys.stderr):
        _forget_output(stream)
    return CLOSED_PIPE


def _fail(message: str, code: int) -> int:
    try:
        typer.echo(f"fedray: {one_line(message)}", err=True)
    except OSError:
        _forget_output(sys.stderr)
    return code


def _forget_output(stream: Any) -> None:
    """Drops output that cannot be written, which the interpreter would try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
