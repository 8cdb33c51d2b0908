"""The `fedray` command. It is thin: all behaviour is in the package. Exit codes: 0 done, 1 a run
failed, 2 bad usage or input, 130 interrupted."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedray import __version__
from fedray.base.errors import FedrayError, InputError, one_line
from fedray.base.extras import missing_extra
from fedray.commands.audits import audit, canary, report, statement
from fedray.commands.caches import cache
from fedray.commands.data import data
from fedray.commands.flags import as_key, check_numbers, in_flags, with_set
from fedray.commands.imports import import_
from fedray.commands.learning import compare, evaluate, pretrain, train
from fedray.commands.mechanisms import calibrate, mechanism, optimize
from fedray.commands.populations import population, sessions
from fedray.commands.reproductions import command_of, list_reproductions, reproductions
from fedray.commands.runs import fit, run, scenarios
from fedray.commands.schemas import init, schema
from fedray.commands.studies import plan, stress
from fedray.commands.watching import status, watch

INTERRUPTED = 130
"""Exit code after an interruption or a termination, as in shells."""
# Click's own errors, by way of typer, since some of its releases include click.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


class _Interrupted(Exception):
    """An interruption with a hint how to resume. typer drops the texts of other interruptions."""


class _Commands(TyperGroup):
    """The commands. If an option is a key of a scenario, the error says how to set the key."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            said = None
            # Typer may include its own click, so the class is recognised by its name.
            if type(error).__name__ == "NoSuchOption":
                parameters = self.commands[ctx.invoked_subcommand].params
                takes_keys = any(each.name == "overrides" for each in parameters)
                option = getattr(error, "option_name", "")
                said = as_key(option) if takes_keys else None
            if said is None:
                raise
            raise InputError(said) from None


class _Command(TyperCommand):
    """A command whose options are listed under headings. Errors name its options and `--set` in
    place of the library's arguments and overrides."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Completion parses unfinished commands.
        if self.callback is not None and not ctx.resilient_parsing:
            check_numbers(args, self.callback, self.params)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FedrayError as error:
            typed = ctx.params.get("overrides") or ()
            # The same class of error, since it decides the exit code.
            error.args = (with_set(in_flags(error, self.params), typed),)
            if isinstance(error, InputError):
                error.problems = tuple(with_set(each, typed) for each in error.problems)
            raise
        except KeyboardInterrupt as interrupt:
            hint = FedrayError(str(interrupt))
            raise _Interrupted(in_flags(hint, self.params)) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                usual = f"{param.param_type_name.title()}s"
                heading = getattr(param, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class _Reproductions(_Commands):
    """The subcommands of `reproduce`, created on demand, since each is a module to import."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(reproductions())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in reproductions():
            ctx.fail(f"unknown reproduction {cmd_name!r}; choose from {', '.join(reproductions())}")
        if cmd_name not in self.commands:
            # A typer app with a single command is that command.
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            function = command_of(cmd_name)
            alone.command(cmd_name, cls=_Command, short_help=function.__doc__)(function)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands[cmd_name]


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich would draw boxes around the help, and takes longer to import than everything else.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Simulate private cross-device federated learning, and audit what really happened.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"fedray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


for _command in (
    run,
    train,
    pretrain,
    compare,
    evaluate,
    audit,
    import_,
    report,
    statement,
    canary,
    stress,
    plan,
    optimize,
    mechanism,
    calibrate,
    fit,
    population,
    sessions,
    status,
    watch,
    cache,
    data,
    scenarios,
    init,
    schema,
):
    # As short help the first paragraph is wrapped; otherwise it would be cut after one line.
    _first = " ".join((_command.__doc__ or "").partition("\n\n")[0].split())
    # The function is called `import_`, since `import` is a keyword.
    _name = _command.__name__.rstrip("_")
    app.command(name=_name, cls=_Command, short_help=_first)(_command)


# Each reproduction is a subcommand, because it has options of its own.
_reproduce = typer.Typer(
    cls=_Reproductions,
    invoke_without_command=True,
    subcommand_metavar="[NAME] [OPTIONS]",
    rich_markup_mode=None,
)
_reproduce.callback()(list_reproductions)
_about = " ".join((list_reproductions.__doc__ or "").split())
app.add_typer(_reproduce, name="reproduce", short_help=_about)


def main() -> None:
    """The console script: runs the command, and ends the process with its exit code."""
    code = command()
    # Everything is done: a signal that comes now would only change the exit code.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The interpreter aborts if it ends while a thread is in torch's C++ code. And if a signal
    # interrupted an `exec`, as imports make many, it would end by SIGINT instead of with this code.
    if code == INTERRUPTED or threading.active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def command() -> int:
    """Runs the command of `sys.argv`, with errors as one line each. Returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="backslashreplace"
            )  # names of files and devices may be no text
    # In its standalone mode click would print errors and end the process.
    return _exit_code(lambda: app(standalone_mode=False))


def _interrupt(number: int, frame: Any) -> None:
    """Treats a termination as an interruption, so that nothing half-written stays behind."""
    raise KeyboardInterrupt


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        code = command()
        # A full disk or a closed pipe may show only now.
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer makes it of an interruption
            return _interrupted()
        return code if isinstance(code, int) else 0
    except SystemExit as done:  # Ray's handler of SIGTERM
        return _interrupted() if done.code == signal.SIGTERM else int(done.code or 0)
    except _Interrupted as interrupt:
        return _interrupted(str(interrupt))
    except InputError as error:
        # Each mistake of a file has a line of its own.
        for problem in error.problems[:-1]:
            _fail(problem, 2)
        return _fail(error.problems[-1] if error.problems else str(error), 2)
    except FedrayError as error:
        return _fail(str(error), 1)
    except _UsageError as error:
        # Typer may include its own click, so the class is recognised by its name.
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(_message(error), err=True)
            return 2
        return _fail(f"{_message(error).rstrip('.')}; see --help", 2)
    except _ClickError as error:
        return _fail(_message(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:  # whoever read the output has seen enough
        _forget_output(sys.stdout)
        return 1
    except ModuleNotFoundError as error:
        lacks = missing_extra(error)
        if lacks is None:
            # Any other missing package is a defect, and its traceback names it.
            raise
        return _fail(str(lacks), 1)
    except OSError as error:  # files have messages of their own: what is left is the output
        _forget_output(sys.stdout)
        return _fail(
            f"standard output, or what was being read, failed ({error}); free space there, or give "
            "another place",
            1,
        )
    except MemoryError:
        return _fail(
            "the memory of this machine does not suffice; close other programs, or take a larger "
            "one",
            1,
        )
    except Exception as error:
        if not _follows_interruption(error):
            raise
        return _interrupted()


def _follows_interruption(error: BaseException) -> bool:
    """Whether an interruption caused an error: one that hits a compilation surfaces as the
    compiler's complaint about a half-made object."""
    before = error.__context__
    return before is not None and (
        isinstance(before, KeyboardInterrupt) or _follows_interruption(before)
    )


def _interrupted(message: str = "") -> int:
    told = message or "interrupted; what is written is written whole or not at all"
    return _fail(told, INTERRUPTED)


def _message(error: Any) -> str:
    return error.format_message()


def _fail(message: str, code: int) -> int:
    try:
        typer.echo(f"fedray: {one_line(message)}", err=True)
    except OSError:
        _forget_output(sys.stderr)
    return code


def _forget_output(stream: Any) -> None:
    """Drops unwritable output, so that the interpreter does not try again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
