"""`fedray init`: write a first scenario, or list the scenarios that ship."""

from pathlib import Path

from fedray.commands.frame.output import print_line, refuse_existing

_HEAD = """\
# A scenario of fedray. `fedray run FILE` runs it, within half a minute on two CPUs; the
# first run of all compiles code for a minute. Keys that are left out have defaults: `fedray schema
# TABLE` describes those of a table.
"""


def init(file: Path = Path("scenario.toml"), *, is_list: bool = False) -> None:
    """Write a small scenario that runs in seconds, with comments on what to change.

    It is the scenario of `fedray run small`.

    Args:
        file: new TOML file
        is_list: list the scenarios that ship, and write no file
    """
    from fedray.base.atomic import is_taken, write_output
    from fedray.scenario.shipped import find_scenario, shipped_scenarios

    if is_list:
        for path, scenario in shipped_scenarios():
            print_line(f"{path.stem}  {path}  {scenario.description}")
        return
    if is_taken(file):
        refuse_existing(file)
    # Name and description of the shipped scenario do not fit the new file.
    own = find_scenario("small").read_text(encoding="utf-8").partition("\n\n")[2]
    write_output(file, f"{_HEAD}\n{own}".encode(), f"scenario {str(file)!r}")
    print_line(f"{file}  (`fedray run {file}` runs it)")
