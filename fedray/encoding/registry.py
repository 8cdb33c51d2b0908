"""Which class encodes, by the table of the scenario."""

from fedray.encoding.encoding import Encoding
from fedray.encoding.fixed_point import FixedPointEncoding
from fedray.encoding.tables import AnyEncoding


def encoding_of(table: AnyEncoding, dimension: int) -> Encoding:
    """The encoding that a table describes.

    Args:
        table: `privacy.encoding` of a scenario.
        dimension: parameters D of the model.
    """
    return FixedPointEncoding(dimension)
