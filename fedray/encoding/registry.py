"""The encodings by `privacy.encoding.kind`. To add one: ARCHITECTURE.md, "To add"."""

from pkgutil import resolve_name

from fedray.encoding.encoding import Encoding, SumSetting
from fedray.encoding.tables import AnyEncoding

ENCODINGS = {
    "discrete_gaussian": "fedray.encoding.discrete_gaussian:DiscreteGaussianEncoding",
    "fixed_point": "fedray.encoding.fixed_point:FixedPointEncoding.of",
    "secagg": "fedray.encoding.secagg:SecAggEncoding",
}
"""What takes its table and a `SumSetting`, and is an `Encoding`."""


def encoding_of(table: AnyEncoding, setting: SumSetting) -> Encoding:
    """The encoding that a table describes.

    Args:
        table: `privacy.encoding` of a scenario.
        setting: what else of the scenario an encoding depends on.

    Raises:
        ScenarioError: if the table does not fit the model or the number of devices.
    """
    return resolve_name(ENCODINGS[table.kind])(table, setting)
