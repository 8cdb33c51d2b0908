"""Exit codes of the command: 0 done, 1 a run failed, 2 bad usage or input, 130 interrupted, 141 the
reader of the output closed it."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import typer

from fedray.base.errors import FedrayError, InputError, one_line
from fedray.base.extras import missing_extra
from fedray.commands.frame.group import ClickError, Interrupted, UsageError

CLOSED_PIPE = 141
"""Exit code if the reader of the output closed it, as `head` does: never 1, which says that a claim
does not hold."""
INTERRUPTED = 130
"""Exit code after an interruption or a termination, as shells have it."""


class _Messages(io.RawIOBase):
    """Standard error without a full disk: a run of hours does not end because of a message that
    cannot be written. A closed pipe ends it, as it ends every program.

    raw: file of standard error.
    """

    lost: ClassVar[OSError | None] = None
    """Error of the first message of the command that was lost."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()

    def write(self, content: Any) -> int | None:
        try:
            return self._raw.write(content)
        except BrokenPipeError:
            raise
        except OSError as error:
            _Messages.lost = _Messages.lost or error
            return len(content)


def prepare_streams() -> None:
    """Makes standard output raise an error if the system does not take all of it, and standard
    error go on without a message that is lost; `exit_code` then returns 1."""
    _Messages.lost = None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
            continue
        if not isinstance(stream, io.TextIOWrapper):  # of a notebook or a test
            continue
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if isinstance(raw, io.FileIO):
            # With PYTHONUNBUFFERED there is no buffer, without which Python drops the rest of a
            # text of which the system takes only the beginning.
            own = io.BufferedWriter(raw if name == "stdout" else _Messages(raw))
            stream = io.TextIOWrapper(own, stream.encoding, line_buffering=True)
            setattr(sys, name, stream)
        # Names of files and devices need not be text.
        stream.reconfigure(errors="backslashreplace")


def exit_code(command: Callable[[], Any]) -> int:
    """Runs a command, prints its error in one line, and returns its exit code."""
    code = _exit_code(command)
    # What a command says beside its result may be that the result is incomplete.
    return 1 if code == 0 and _Messages.lost is not None else code


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        code = command()
        _flush_output()
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


def _flush_output() -> None:
    """Raises OSError if standard output is not whole: a full disk or a closed pipe may show only at
    the end."""
    sys.stdout.flush()
    # The servers of network file systems are asked when a descriptor is closed.
    with contextlib.suppress(io.UnsupportedOperation):  # a notebook or a test has none
        os.close(os.dup(sys.stdout.fileno()))


def _forget_output(stream: Any) -> None:
    """Drops output that cannot be written, which the interpreter would try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
