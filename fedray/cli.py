"""The `fedray` command: thin; every behaviour is in the package. Exit codes: 0 done, 1 a run failed, 2 bad usage or input."""

import signal
import sys
from collections.abc import Callable
from typing import Any

import typer

from fedray.commands.audits import audit, canary, report, statement
from fedray.commands.imports import import_
from fedray.commands.mechanisms import mechanism, optimize
from fedray.commands.runs import fit, reproduce, run, scenarios, schema
from fedray.commands.studies import plan, stress
from fedray.errors import FedrayError, InputError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Simulate private cross-device federated learning, and audit what really happened.",
)
for _command in (
    run,
    audit,
    import_,
    report,
    statement,
    canary,
    stress,
    plan,
    optimize,
    mechanism,
    reproduce,
    fit,
    scenarios,
    schema,
):
    app.command(name=_command.__name__.rstrip("_"))(_command)

# Click's own errors, by way of typer: some releases carry click inside.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def main() -> None:
    """The console script: turns errors into one line and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(_exit_code(lambda: app(standalone_mode=False)))


def _interrupt(number: int, frame: Any) -> None:
    """A termination is an interruption, so that nothing half-written stays behind."""
    raise KeyboardInterrupt


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        code = command()
        return _interrupted() if code == 130 else code if isinstance(code, int) else 0
    except SystemExit as done:  # Ray's handler of SIGTERM
        return _interrupted() if done.code == signal.SIGTERM else int(done.code or 0)
    except InputError as error:
        return _fail(str(error), 2)
    except FedrayError as error:
        return _fail(str(error), 1)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(_message(error), err=True)
            return 2
        return _fail(f"{_message(error).rstrip('.')}; see --help", 2)
    except _ClickError as error:
        return _fail(_message(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()


def _interrupted() -> int:
    return _fail("interrupted; what is written is written whole or not at all", 1)


def _message(error: Any) -> str:
    return error.format_message()


def _fail(message: str, code: int) -> int:
    typer.echo(f"fedray: {' '.join(message.split())}", err=True)
    return code
