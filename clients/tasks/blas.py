"""Matrix products for compiled loops, by the library that torch multiplies with.

A call from Python takes as long as a small model's product. numba's own `np.dot` calls SciPy's
library, which takes 1.6 times as long for an LSTM's shapes, and cannot add to its result.
"""

import ctypes
from pathlib import Path

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from fedray.base.compiled import njit

_NORMAL, _TURNED = np.uint8(ord("N")), np.uint8(ord("T"))


def sgemm_address() -> int:
    """Returns the address of the BLAS routine SGEMM that torch has; SciPy's if it shows none."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        file = Path(torch.__file__).parent / "lib" / name
        if file.exists():
            routine = getattr(ctypes.CDLL(str(file)), "sgemm_", None)
            if routine is not None:
                return ctypes.cast(routine, ctypes.c_void_p).value or 0
    return get_cython_function_address("scipy.linalg.cython_blas", "sgemm")


@njit(inline="always")
def multiply(sgemm, left, right, out):
    """Writes left [N, K] times right [K, M] to out [N, M]; all are contiguous float32."""
    _call(sgemm, left, _NORMAL, right, _NORMAL, left.shape[1], 1.0, 0.0, out)


@njit(inline="always")
def multiply_turned(sgemm, left, right, out, kept=0.0):
    """Writes left [N, K] times the transpose of right [M, K] to out [N, M], plus kept * out."""
    _call(sgemm, left, _NORMAL, right, _TURNED, left.shape[1], 1.0, kept, out)


@njit(inline="always")
def add_outer(sgemm, left, right, factor, out):
    """Adds factor times the transpose of left [K, N] times right [K, M] to out [N, M]."""
    _call(sgemm, left, _TURNED, right, _NORMAL, left.shape[0], factor, 1.0, out)


@njit(inline="always")
def _call(sgemm, left, left_turned, right, right_turned, inner, factor, kept, out):
    # SGEMM reads columns first, and so sees every matrix transposed: out' = right' left'.
    _sgemm(  # pyright: ignore[reportCallIssue]
        *(sgemm, right_turned, left_turned, out.shape[1], out.shape[0], inner),
        *(np.float32(factor), right.ctypes.data, right.shape[1]),
        *(left.ctypes.data, left.shape[1], np.float32(kept), out.ctypes.data, out.shape[1]),
    )


@intrinsic
def _sgemm(
    context, address, turn_a, turn_b, rows, columns, inner, factor, a, step_a, b, step_b, kept, c,
    step_c,
):  # fmt: skip
    """Calls SGEMM at an address. Its whole numbers are read from 64 bits, of which a library of 32
    bits sees the lower half."""
    flag, whole, real, place = types.uint8, types.intp, types.float32, types.uintp
    of_a, of_b, of_c = (real, place, whole), (place, whole), (real, place, whole)
    signature = types.void(whole, flag, flag, whole, whole, whole, *of_a, *of_b, *of_c)

    def generate(context, builder, signature, arguments):
        pointer = ir.IntType(8).as_pointer()
        routine = ir.FunctionType(ir.VoidType(), [pointer] * 13)
        passed = [
            builder.inttoptr(value, pointer)
            if kind == place
            else builder.bitcast(cgutils.alloca_once_value(builder, value), pointer)
            for kind, value in zip(signature.args[1:], arguments[1:], strict=True)
        ]
        builder.call(builder.inttoptr(arguments[0], routine.as_pointer()), passed)
        return context.get_dummy_value()

    return signature, generate
