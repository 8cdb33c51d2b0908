"""`fedray init`: write a first scenario, or list the scenarios that ship."""

from dataclasses import dataclass
from pathlib import Path

from fedray.base.document import Document
from fedray.commands.frame.output import print_json, print_line, refuse_existing

_HEAD = """\
# A scenario of fedray. `fedray run FILE` runs it, within half a minute on two CPUs; the
# first run of all compiles code for a minute. Keys that are left out have defaults: `fedray schema
# TABLE` describes those of a table.
"""


@dataclass(frozen=True, slots=True)
class ShippedScenario:
    """A scenario that ships with fedray."""

    name: str
    """Argument of commands in place of a file."""
    file: str
    """Path of the file."""
    description: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True)
class ShippedScenarios(Document):
    """All scenarios that ship with fedray."""

    scenarios: list[ShippedScenario]
    """The scenarios that ship with fedray."""


@dataclass(frozen=True, slots=True)
class NewScenario(Document):
    """A scenario file that was written."""

    file: str
    """The scenario file that was written."""
    scenario_digest: str
    """Digest of the scenario."""


def init(
    file: Path = Path("scenario.toml"),
    *,
    is_list: bool = False,
    as_json: bool = False,
) -> None:
    """Write a small scenario that runs in seconds, with comments on what to change.

    It is the scenario of `fedray run small`.

    Args:
        file: new TOML file
        is_list: list the scenarios that ship, and write no file
    """
    if is_list:
        _list(as_json)
        return
    refuse_existing(file)
    found = _write(file)
    if as_json:
        print_json(found.to_json())
        return
    print_line(f"{file}  (`fedray run {file}` runs it)")


def _list(as_json: bool) -> None:
    from fedray.scenario.shipped import shipped_scenarios

    found = [
        ShippedScenario(path.stem, str(path), scenario.description)
        for path, scenario in shipped_scenarios()
    ]
    if as_json:
        print_json(ShippedScenarios(found).to_json())
        return
    for each in found:
        print_line(f"{each.name}  {each.file}  {each.description}")


def _write(file: Path) -> NewScenario:
    from fedray.base.atomic import write_whole
    from fedray.base.errors import InputError
    from fedray.scenario import Scenario
    from fedray.scenario.shipped import find_scenario

    shipped = find_scenario("small")
    # Name and description of the shipped scenario do not fit the new file.
    own = shipped.read_text(encoding="utf-8").partition("\n\n")[2]
    write_whole(file, f"{_HEAD}\n{own}".encode(), f"scenario {str(file)!r}", InputError)
    return NewScenario(str(file), Scenario.from_toml(shipped).digest)
