"""The group of commands, and what every command does: help, checks, names in errors."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedray.base.errors import FedrayError, InputError, one_line
from fedray.commands.frame.flags import as_key, as_placement, in_flags, with_set
from fedray.commands.frame.numbers import check_numbers

# Some releases of typer carry their own click, so its classes are reached through typer.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
ClickError: type[Exception] = typer.BadParameter.__mro__[2]


class Interrupted(Exception):
    """An interruption, with the way to continue if it is known; typer drops the text of one."""


class Commands(TyperGroup):
    """The commands under their headings. Options of a command may stand before its name. An unknown
    option that is the name of a setting is answered with the way to give it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Shell completion parses incomplete commands.
        return super().parse_args(ctx, args if ctx.resilient_parsing else self._in_order(ctx, args))

    def _in_order(self, ctx: Any, args: list[str]) -> list[str]:
        """Returns the arguments with options of the command behind its name. The word after an
        unknown option is taken for its value if only a later one is a command."""
        if not args or not args[0].startswith("-"):
            return args
        # "--" ends the options of the group; options before it still go behind the command.
        own = {"--", *(flag for each in self.get_params(ctx) for flag in each.opts)}
        names = self.list_commands(ctx)
        commands: list[Any] = [self.get_command(ctx, name) for name in names]
        # An option has the same name, and a value or none, in every command.
        has_value = dict.fromkeys(own, False) | {
            flag: not each.is_flag
            for command in commands
            for each in command.params
            if each.param_type_name == "option"
            for flag in (*each.opts, *each.secondary_opts)
        }
        mine, moved, rest = [], [], list(args)
        while rest and rest[0].startswith("-") and "--" not in mine:
            word = rest.pop(0)
            (mine if word in own else moved).append(word)
            is_followed = bool(rest) and not rest[0].startswith("-") and "=" not in word
            is_value = is_followed and rest[0] not in names and bool({*names} & {*rest[1:]})
            if has_value.get(word, is_value):
                moved += rest[:1]
                rest = rest[1:]
        return [*mine, *rest[:1], *moved, *rest[1:]]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            # The class may be that of typer's own click, so it is known by its name.
            if type(error).__name__ != "NoSuchOption":
                raise
            option = getattr(error, "option_name", "")
            hint = self._hint(option, ctx)
            if hint is None:
                raise
            raise InputError(hint) from None

    def _hint(self, option: str, ctx: Any) -> str | None:
        command = ctx.invoked_subcommand
        names = {each.name for each in self.commands[command].params}
        # A setting that is no option is given by another one.
        hint = as_placement(option) if "place" in names else None
        return hint or (as_key(option) if "overrides" in names else None)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(heading, []).append((name, command.get_short_help_str(200)))
        _write_sections(formatter, sections)


class Command(TyperCommand):
    """A command whose options are listed under headings, and whose errors name its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Shell completion parses incomplete commands.
        if self.callback is not None and not ctx.resilient_parsing:
            check_numbers(args, self.callback, self.params)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FedrayError as error:
            typed = ctx.params.get("overrides") or ()
            # The same error object, since its type decides the exit code.
            error.args = (with_set(in_flags(error, self.params), typed),)
            if isinstance(error, InputError):
                error.problems = tuple(with_set(each, typed) for each in error.problems)
            raise
        except typer.Exit as done:
            if isinstance(done.__cause__, InputError):
                mistake = one_line(in_flags(done.__cause__, self.params))
                typer.echo(f"fedray: {mistake}", err=True)
            raise
        except KeyboardInterrupt as interrupt:
            hint = FedrayError(str(interrupt))
            raise Interrupted(in_flags(hint, self.params)) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                heading = getattr(param, "rich_help_panel", None)
                heading = heading or f"{param.param_type_name.title()}s"
                sections.setdefault(heading, []).append(record)
        _write_sections(formatter, sections)


def _write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)
