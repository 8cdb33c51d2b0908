"""Types of numpy arrays, by the type of their elements."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
UInt8Array = NDArray[np.uint8]
UInt16Array = NDArray[np.uint16]
UInt32Array = NDArray[np.uint32]
UInt64Array = NDArray[np.uint64]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
# Either type: numpy is faster for small arrays on a CPU, and only torch runs on a GPU.
Numbers = Any
"""An array, or the same as a tensor of torch on a GPU."""
