"""Creation of encodings from the tables of scenarios."""

from pkgutil import resolve_name

from fedray.encoding.encoding import Encoding, SumSetting
from fedray.encoding.tables import EncodingTable


def encoding_of(table: EncodingTable, setting: SumSetting) -> Encoding:
    """Returns the encoding that a table describes.

    Raises:
        ScenarioError: the table does not fit the model or the number of devices.
    """
    return resolve_name(table.implementation)(table, setting)
