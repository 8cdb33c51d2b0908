"""Which class encodes, by the table of the scenario."""

from fedray.encoding.encoding import Encoding
from fedray.encoding.fixed_point import FixedPointEncoding
from fedray.encoding.secagg import SecAggEncoding
from fedray.encoding.tables import AnyEncoding, FixedPoint, SecAgg


def encoding_of(table: AnyEncoding, dimension: int, devices: int, seed: int) -> Encoding:
    """The encoding that a table describes.

    Args:
        table: `privacy.encoding` of a scenario.
        dimension: parameters D of the model.
        devices: most devices in a sum: the scenario's report goal.
        seed: of the training.

    Raises:
        ScenarioError: if the table does not fit the model or the number of devices.
    """
    match table:
        case FixedPoint():
            return FixedPointEncoding(dimension)
        case SecAgg():
            return SecAggEncoding(table, dimension, devices, seed)
