"""The key in which a scenario differs from a recorded one."""

from collections.abc import Mapping
from typing import Any

from fedray.base.dotted import flat
from fedray.base.errors import shown
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.scenario import FILE_KEYS

_FREE = {"name", "description", *FILE_KEYS}
"""Keys that change no digest."""


def differing(document: Mapping[str, Any], scenario: Scenario | SeveralTasks | None) -> str:
    """Returns the first key by which the digest of a recorded scenario of one task differs, with
    both values, as the end of a clause; empty if there is none, or no scenario is given."""
    if not isinstance(scenario, Scenario):
        return ""
    before, after = (
        {key: value for key, value in flat(tables, "") if key not in _FREE}
        for tables in (document["scenario"], scenario.to_tables())
    )
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was != now:
            # The content of a file counts, and its name is what its user knows.
            file = after.get(f"{key.removesuffix('sha256')}file")
            of_file = f" ({shown(file)})" if file and key.endswith(".sha256") else ""
            return f": {key}{of_file} was {_text(was)}, and is {_text(now)}"
    return ""


def _text(value: Any) -> str:
    return "not set" if value is None else shown(value)
