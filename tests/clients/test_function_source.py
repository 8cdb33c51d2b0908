"""Mistakes in a user's function of examples are told, each with what to correct."""

import numpy as np
import pytest
import torch

from fedray.base.errors import InputError
from fedray.clients.data.source import DamagedExamples
from fedray.clients.tasks.module import FunctionSource

DEVICES = np.arange(2, dtype=np.uint64)
FIRST_TWO = np.array([[0, 1], [0, 1]])
INPUTS, TARGETS = np.ones((3, 4)), np.arange(3)


def test_arrays_are_examples_as_tensors_are() -> None:
    as_arrays = FunctionSource(lambda device: (INPUTS, TARGETS))
    as_tensors = FunctionSource(lambda device: (torch.tensor(INPUTS), torch.tensor(TARGETS)))

    assert as_arrays.fields == as_tensors.fields
    found, expected = (each.examples(DEVICES, FIRST_TWO) for each in (as_arrays, as_tensors))
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(
    "inputs",
    [
        INPUTS[::-1],
        np.broadcast_to(1.0, (3, 4)),
        INPUTS.astype(">f4"),
        INPUTS.astype(np.longdouble),
    ],
    ids=["reversed", "read-only", "of another byte order", "longer than float64"],
)
def test_an_array_of_any_layout_is_taken(inputs: np.ndarray) -> None:
    found = FunctionSource(lambda device: (inputs, TARGETS)).examples(DEVICES, FIRST_TWO)

    assert found["inputs"].dtype == np.float32
    assert (found["inputs"] == 1.0).all()


def test_a_tensor_with_a_gradient_is_taken() -> None:
    source = FunctionSource(lambda device: (torch.ones(3, 4, requires_grad=True), TARGETS))

    assert source.examples(DEVICES, FIRST_TWO)["inputs"].shape == (2, 2, 4)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, "a NoneType"),
        (torch.ones(3, 4), "a Tensor"),
        ({"inputs": INPUTS, "targets": TARGETS}, "a dict"),
        ((INPUTS.tolist(), TARGETS), "a tuple of list, ndarray"),
        ((INPUTS.astype(str), TARGETS), "a tuple of ndarray, ndarray"),
        ((INPUTS, torch.tensor(1)), "a tuple of ndarray, Tensor"),
    ],
)
def test_what_is_no_pair_of_arrays_is_refused_and_named(given, named) -> None:
    source = FunctionSource(lambda device: given)

    with pytest.raises(InputError, match=rf"examples\(0\) gave {named}; it must give two"):
        _ = source.fields


def test_a_function_that_fails_on_held_out_devices_is_told_which_those_are() -> None:
    data = {0: (INPUTS, TARGETS), 1: (INPUTS, TARGETS)}
    source = FunctionSource(lambda device: data[device])

    with pytest.raises(InputError, match=r"examples\(1099511627776\) of a held-out device .*2\^40"):
        source.examples_on(np.array([2**40], np.uint64))


def test_devices_whose_examples_have_another_shape_are_refused() -> None:
    source = FunctionSource(lambda device: (INPUTS[:, : 4 - device], TARGETS))

    with pytest.raises(InputError, match=r"examples\(1\) gave .*\[3, 3\].*\[3, 4\]"):
        source.examples(DEVICES, FIRST_TWO)


@pytest.mark.parametrize("name", ["inputs", "targets"])
def test_examples_with_nan_are_refused(name: str) -> None:
    given = {"inputs": INPUTS, "targets": TARGETS * 1.0}
    given[name] = given[name].copy()
    given[name][1] = np.nan
    source = FunctionSource(lambda device: (given["inputs"], given["targets"]))

    with pytest.raises(InputError, match=rf"examples\(0\) gave {name} with NaN"):
        source.examples(DEVICES, FIRST_TWO)


def test_a_device_without_examples_may_have_any_shape() -> None:
    source = FunctionSource(lambda device: ((INPUTS, TARGETS), (np.ones(0), np.ones(0)))[device])

    assert source.examples_on(DEVICES).tolist() == [3, 0]


def test_damaged_examples_are_the_callers_to_treat() -> None:
    def examples(device):
        raise DamagedExamples({0: "unreadable"})

    with pytest.raises(DamagedExamples):
        FunctionSource(examples).examples_on(DEVICES)
