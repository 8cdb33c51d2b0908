"""The encoding that a scenario's table describes."""

from pkgutil import resolve_name

from fedray.encoding.encoding import Encoding, SumSetting
from fedray.encoding.tables import AnyEncoding


def encoding_of(table: AnyEncoding, setting: SumSetting) -> Encoding:
    """Returns the encoding that a table describes.

    Args:
        table: `privacy.encoding` of a scenario.
        setting: other settings that an encoding depends on.

    Raises:
        ScenarioError: the table does not fit the model or the number of devices.
    """
    return resolve_name(table.implementation)(table, setting)
