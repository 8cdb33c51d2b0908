"""What every source of examples must do, as checks that a test runs: one of your own too.

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_source_keeps_the_contract(check):
        check(source)

A check is given what makes the source, `source()`, and raises AssertionError.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedray.clients.data.source import FIRST_HELD_OUT, ExampleSource

MakeSource = Callable[[], ExampleSource]
DEVICES = np.array([0, 1, 7, 65_536, 2**39], np.uint64)
KINDS = {"real": np.float32, "whole": np.int64}


def check_examples_have_the_shapes_and_kinds_of_their_fields(make: MakeSource) -> None:
    """Every field has its shape and number type; whole numbers are below `values`.

    Args:
        make: gives the source.
    """
    source = make()
    devices, positions = _some(source)
    examples = source.examples(devices, positions)
    assert examples.keys() == source.fields.keys()
    for name, field in source.fields.items():
        values = examples[name]
        assert values.shape == (*positions.shape, *field.shape)
        assert values.dtype == KINDS[field.kind]
        if field.kind == "whole":
            assert 0 <= values.min() <= values.max() < field.values
        else:
            assert np.isfinite(values).all()


def check_examples_belong_to_the_device(make: MakeSource) -> None:
    """A device has the same examples in any company, in any order, from any source that is made
    anew.

    Args:
        make: gives the source.
    """
    source = make()
    other = make()
    devices, positions = _some(source)
    together = source.examples(devices, positions)
    # The other source is asked for one device at a time, the last first, and for its examples
    # backwards.
    for place in range(devices.size)[::-1]:
        device = devices[place : place + 1]
        backwards = positions[place : place + 1, ::-1]
        alone = other.examples(device, backwards)
        for name in source.fields:
            own = alone[name][0, ::-1]
            assert (own == together[name][place]).all()


def check_counts_belong_to_the_device(make: MakeSource) -> None:
    """How many examples a device has does not depend on who else is asked for.

    Args:
        make: gives the source.
    """
    source = make()
    counts = source.examples_on(DEVICES)
    assert counts.dtype == np.int64
    assert (counts >= 0).all()
    backwards = DEVICES[::-1].copy()
    assert (source.examples_on(backwards)[::-1] == counts).all()


def check_held_out_devices_have_examples(make: MakeSource) -> None:
    """Some devices are held out, and have data of the same form.

    Args:
        make: gives the source.
    """
    source = make()
    assert source.held_out_devices > 0
    count = min(source.held_out_devices, 20)
    devices = FIRST_HELD_OUT + np.arange(count, dtype=np.uint64)
    devices = devices[source.examples_on(devices) > 0]
    assert devices.size
    first_ones = np.zeros((devices.size, 1), np.int64)
    examples = source.examples(devices, first_ones)
    assert examples.keys() == source.fields.keys()


CHECKS = (
    check_examples_have_the_shapes_and_kinds_of_their_fields,
    check_examples_belong_to_the_device,
    check_counts_belong_to_the_device,
    check_held_out_devices_have_examples,
)


def _some(source: ExampleSource) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Devices that have examples, and positions [G, 5] of some of them."""
    counts = source.examples_on(DEVICES)
    has_examples = counts > 0
    devices = DEVICES[has_examples]
    assert devices.size
    # Out of order, and with repeats where a device has few.
    steps = 3 * np.arange(5)
    return devices, steps[None, :] % counts[has_examples, None]
