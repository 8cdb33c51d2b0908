"""The noise of a mechanism from the definition of its matrix: slow, and without the code of the
streams that canaries check. Further slow twins are with the tests (tests/mechanisms/slow_twins.py).
"""

import numpy as np

from fedray.base.arrays import Float64Array
from .strategy import Strategy
from .tree import Tree
from .tree_nodes import tree_noise_map


def noise_map(strategy: Strategy, rounds: int) -> Float64Array:
    """Returns M, [rounds, draws]: the noise of round t is z * clip_norm * (M Z)[t], Z standard
    normal.

    There is one draw per row of C and, for completed trees, one per virtual subtree, which stands
    for its whole estimate.
    """
    if isinstance(strategy, Tree):
        return tree_noise_map(strategy, rounds)
    return np.linalg.inv(strategy.definition(rounds)).astype(np.float64)
