"""Which class encodes, by the table of the scenario."""

from fedray.encoding.discrete_gaussian import DiscreteGaussianEncoding
from fedray.encoding.encoding import Encoding, SumSetting
from fedray.encoding.fixed_point import FixedPointEncoding
from fedray.encoding.secagg import SecAggEncoding
from fedray.encoding.tables import AnyEncoding, DiscreteGaussian, FixedPoint, SecAgg


def encoding_of(table: AnyEncoding, setting: SumSetting) -> Encoding:
    """The encoding that a table describes.

    Args:
        table: `privacy.encoding` of a scenario.
        setting: what else of the scenario an encoding depends on.

    Raises:
        ScenarioError: if the table does not fit the model or the number of devices.
    """
    match table:
        case FixedPoint():
            return FixedPointEncoding(setting.dimension)
        case SecAgg():
            return SecAggEncoding(table, setting)
        case DiscreteGaussian():
            return DiscreteGaussianEncoding(table, setting)
