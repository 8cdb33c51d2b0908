"""The tree of errors.

    FedrayError
    ├── InputError (also ValueError)   the caller's mistake: exit code 2
    │   ├── ScenarioError              an unusable scenario file or override
    │   ├── CheckpointError            an unfinished run that cannot be resumed
    │   └── TraceError                 a path that holds no readable trace
    │       ├── TraceCorrupt           files are missing, truncated or break an invariant
    │       └── TraceVersion           written under a schema this release does not read
    ├── StopTraining                   raised by a user's callback, to end a training early
    ├── MissingExtra (also ImportError)  a package of an extra that is not installed: exit code 1
    └── RunFailed                      a failure during a run: exit code 1
        ├── Starved                    too few devices checked in to commit the requested rounds
        │   └── Unsustainable          the rules make that certain (also InputError): exit code 2
        ├── Refused                    the first release was outside the claim to ensure
        ├── ShardLost                  a population shard died or stopped answering
        ├── AggregatorLost             the aggregator died or stopped answering
        │   └── StoreLost              the store of devices' sums died or stopped answering
        ├── TrainerLost                a trainer died or stopped answering
        ├── FitFailed                  no value reproduces the observations
        └── OptimizationFailed         no valid mechanism was found (also ArithmeticError)

Every message gives the argument, its value, the broken rule and a remedy, on one line. If a file
has several mistakes, `InputError.problems` has a line for each.
"""

import re
from collections.abc import Callable
from typing import Self, TypeVar

from fedray.base.escaped import printable

SHOWN_CHARACTERS = 80
"""Largest number of characters of a value in a message."""
Naming = Callable[[str, str], str | None]
_Value = TypeVar("_Value")
_MENTION = re.compile(r"`(\w+)=([^`]*)`")
"""An argument that a message mentions beside the one at fault."""
_WORD_CHARACTERS, _LINE_CHARACTERS = 300, 2000  # a path's name has up to 255, and is cut by nobody


def shown(value: object) -> str:
    """Returns a value as messages show it: its repr, cut to 80 characters. It works for every
    value, however large."""
    if getattr(value, "shape", None) == ():
        value = getattr(value, "item", lambda: value)()  # numpy would show its own type too
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints; nesting
        return f"a {type(value).__name__} beyond printing"
    return _cut(text, SHOWN_CHARACTERS)


def one_line(message: str) -> str:
    """Returns a message as the command prints it: one line of printable characters, with the middle
    cut out if it is too long to read."""
    # Long words are cut first, so that one value does not push the rest out of the line.
    words = re.sub(
        rf"\S{{{_WORD_CHARACTERS},}}", lambda word: _cut(word[0], SHOWN_CHARACTERS), message
    )
    return printable(_cut(" ".join(words.split()), _LINE_CHARACTERS))


def _cut(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    # The end stays too, since it often says more than the middle.
    end = characters // 3
    return f"{text[: characters - end - 3]}...{text[-end:]}"


class FedrayError(Exception):
    """Root of every error fedray raises on purpose."""

    def naming(self, name: Naming) -> str:
        """Returns the message with other names for the arguments, such as the options of a command.

        Args:
            name: function that returns the text for an argument and its value, or None to keep
                them.
        """
        return _renamed(str(self), name)


class InputError(FedrayError, ValueError):
    """A caller's mistake; the command line exits with 2."""

    argument: str = ""
    """Name of the argument or key at fault; empty if the message has a subject of its own."""
    value: object = None
    """The value given for it."""
    rule: str = ""
    """The rule that the value breaks, such as "must be at least 1"."""
    remedy: str = ""
    """One thing to do about it. Another argument is named in backticks: `rounds=3`."""
    problems: tuple[str, ...] = ()
    """The mistakes of a file, one line each, if the message joins several."""

    @classmethod
    def of(cls, argument: str, value: object, rule: str, remedy: str = "") -> Self:
        """Returns the error of one argument; its message is "argument=value rule; remedy"."""
        error = cls(f"{argument}={shown(value)} {_sentence(rule, remedy)}")
        error.argument, error.value, error.rule, error.remedy = argument, value, rule, remedy
        return error

    @classmethod
    def caused_by(cls, error: ValueError) -> "InputError":
        """Returns a ValueError of a lower layer as an InputError; an InputError is returned
        unchanged."""
        return error if isinstance(error, InputError) else cls(str(error))

    def naming(self, name: Naming) -> str:
        if not self.argument:
            return super().naming(name)
        value = shown(self.value)
        subject = name(self.argument, value) or f"{self.argument}={value}"
        return f"{subject} {_renamed(_sentence(self.rule, self.remedy), name)}"


def _renamed(text: str, name: Naming) -> str:
    """Returns the text with other names for the arguments in backticks."""
    return _MENTION.sub(lambda found: f"`{name(found[1], found[2]) or found[0].strip('`')}`", text)


def _sentence(rule: str, remedy: str) -> str:
    return f"{rule}; {remedy}" if remedy else rule


def demanded(argument: str, value: _Value | None, rule: str) -> _Value:
    """Returns a value that must be given; raises InputError if it is None."""
    if value is None:
        raise InputError.of(argument, None, rule)
    return value


class ScenarioError(InputError):
    """A scenario that cannot be used."""


class CheckpointError(InputError):
    """An unfinished run that cannot be resumed."""


class TraceError(InputError):
    """A path that holds no readable trace."""


class TraceCorrupt(TraceError):
    """A trace whose files are missing, truncated or break an invariant."""

    @classmethod
    def at(
        cls, place: object, problem: str, remedy: str = "copy the trace from its source again"
    ) -> Self:
        """Returns the error of a `problem` that a file or directory, `place`, has."""
        return cls(f"{place} {problem}; {remedy}")


class TraceVersion(TraceError):
    """A trace written under a schema version this release does not read."""


class StopTraining(FedrayError):
    """Ends a training after its last round, if a listener raises it on a `TrainingProgress`.

    The run is then finished with the rounds done, and its trace has only these. The message says
    why. On other progress it ends the run as any error does.
    """


class MissingExtra(FedrayError, ImportError):
    """A package of an extra that is not installed; the message has the command that installs it."""


class RunFailed(FedrayError):
    """A run that could not be finished; the command line exits with 1."""


class Starved(RunFailed):
    """Too few devices checked in to commit the requested rounds."""


class Unsustainable(InputError, Starved):
    """Rules and population that cannot commit the requested rounds, whatever happens in the run."""


class Refused(RunFailed):
    """A run whose first release was outside the claim that it must ensure."""


class ShardLost(RunFailed):
    """A population shard died or stopped answering."""


class AggregatorLost(RunFailed):
    """The aggregator died or stopped answering."""


class StoreLost(AggregatorLost):
    """The store of devices' sums died or stopped answering."""


class TrainerLost(RunFailed):
    """A trainer died or stopped answering."""


class OptimizationFailed(RunFailed, ArithmeticError):
    """No valid mechanism was found."""


class FitFailed(RunFailed):
    """No value reproduces the observation."""
