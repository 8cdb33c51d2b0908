"""Checks that every example source of fedray must pass, each by itself; `fedray.check_task` has them for users.

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_source_keeps_the_contract(check):
        check(source)

A check takes a function that makes the source, `source()`. It raises AssertionError with the
result, the expected one, and a remedy. No check asks for a position beyond a device's count, since
nothing in fedray does.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedray.clients.data.source import FIRST_HELD_OUT, Examples, ExampleSource, Field, Ids, Integers

MakeSource = Callable[[], ExampleSource]
DEVICES = np.array([0, 1, 7, 65_536, 2**39], np.uint64)
MOST_EXAMPLES = 2**32
"""A trace stores counts in 32 bits."""
_COMPARED_DEVICES, _COMPARED_HELD_OUT, _COMPARED_EXAMPLES = 200, 20, 20


def check_fields_say_what_examples_are(make: MakeSource) -> None:
    """Fields have a kind, and whole numbers a count of values that includes special tokens.

    A second source has the same fields. Optima are finite.
    """
    source = make()
    assert source.fields, "`fields` is empty; name every array of an example, with its Field"
    other = make().fields
    assert dict(source.fields) == dict(other), (
        f"`fields` are {dict(source.fields)}, and {dict(other)} in a second source; they must be a "
        "function of the scenario"
    )
    for name, field in source.fields.items():
        assert field.kind in ("real", "whole"), (
            f"{name!r} has kind {field.kind!r}; choose 'real' or 'whole'"
        )
        if field.kind == "whole":
            assert field.values > 0, (
                f"{name!r} has {field.values} possible whole numbers; set `values` to their count"
            )
        for role in ("padding", "unknown"):
            token = getattr(field, role)
            assert token is None or 0 <= token < field.values, (
                f"{name!r} has {role} {token}, which must be within 0 to {field.values - 1}"
            )
    for name, value in source.optimum.items():
        assert np.isfinite(value), f"the optimum of {name!r} is {value}; leave out unknown ones"


def check_examples_have_the_shapes_and_kinds_of_their_fields(make: MakeSource) -> None:
    """Every field has its shape and number type, and whole numbers below `values`; padding is
    last."""
    source = make()
    _assert_form(source, *_some(source))


def check_examples_belong_to_the_device(make: MakeSource) -> None:
    """A device has the same examples in any group, in any order, and from a second source."""
    source = make()
    other = make()
    devices, positions = _some(source)
    together = _examples(source, devices, positions)
    rule = (
        "an example is a function of only the scenario, the device id and the position: draw from "
        "a generator that is made of these"
    )
    # The other source gets one device at a time, the last first, and positions backwards.
    for place in range(devices.size)[::-1]:
        device = devices[place : place + 1]
        backwards = positions[place : place + 1, ::-1].copy()
        single = _examples(other, device, backwards)
        last = _examples(other, device, backwards[:, -1:])
        for name in source.fields:
            what = f"examples of device {device[0]} ({name!r})"
            own = single[name][0, ::-1]
            assert np.array_equal(own, together[name][place]), (
                f"{what} differ between a source asked for devices {devices.tolist()} together and "
                f"one asked for each by itself, positions backwards; {rule}"
            )
            assert np.array_equal(last[name][0, 0], own[0]), (
                f"{what} differ between one position asked for by itself and among others; {rule}"
            )


def check_examples_stay_the_same(make: MakeSource) -> None:
    """A source repeats its examples, even if a caller wrote into the first ones, and leaves ids and
    positions unchanged."""
    source = make()
    devices, positions = _some(source)
    counts = source.examples_on(DEVICES)
    given_devices, given_positions = devices.copy(), positions.copy()
    first = _examples(source, devices, positions)
    is_as_given = (devices == given_devices).all() and (positions == given_positions).all()
    assert is_as_given, "examples() has changed its device_ids or positions; work on copies"
    kept = {name: values.copy() for name, values in first.items()}
    for values in first.values():
        # Tasks may write into a batch, unless it is read-only.
        if values.flags.writeable:
            values[...] = 0
    again = _examples(source, devices, positions)
    for name, values in kept.items():
        assert np.array_equal(again[name], values), (
            f"examples ({name!r}) differ when the same positions of devices {devices.tolist()} are "
            "asked for again, after the first result was overwritten; a source keeps no state "
            "between calls, and gives copies"
        )
    counts_again = source.examples_on(DEVICES)
    assert np.array_equal(counts_again, counts), (
        f"examples_on() was {counts.tolist()} of devices {DEVICES.tolist()} before their examples "
        f"were read, and is {counts_again.tolist()} after; it must stay the same"
    )


def check_counts_belong_to_the_device(make: MakeSource) -> None:
    """The count of a device does not depend on other devices, and its last example can be read."""
    source = make()
    counts = source.examples_on(DEVICES)
    assert counts.shape == DEVICES.shape, (
        f"examples_on() of {DEVICES.size} devices has shape {counts.shape}; give one count each"
    )
    assert counts.dtype == np.int64, (
        f"examples_on() gave {counts.dtype}; it must be int64 (.astype(np.int64))"
    )
    assert ((counts >= 0) & (counts < MOST_EXAMPLES)).all(), (
        f"examples_on() gave {counts.tolist()}; counts are from 0 to 2^32 - 1"
    )
    other = make()
    # The last device first, so that the order of calls differs too.
    backwards = [other.examples_on(DEVICES[g : g + 1]) for g in range(DEVICES.size)[::-1]]
    single = np.concatenate(backwards)[::-1]
    assert np.array_equal(single, counts), (
        f"devices {DEVICES.tolist()} have {counts.tolist()} examples together, and "
        f"{single.tolist()} one by one in a second source; a count is a function of only the "
        "scenario and the device id"
    )
    for device, count in zip(DEVICES[counts > 0], counts[counts > 0], strict=True):
        _examples(source, np.array([device]), np.array([[count - 1]]))


def check_held_out_devices_have_examples(make: MakeSource) -> None:
    """Some devices are held out, and have data of the same form."""
    source = make()
    devices = _held_out(source)
    first_ones = np.zeros((devices.size, 1), np.int64)
    _assert_form(source, devices, first_ones)


def check_held_out_data_is_of_no_device(make: MakeSource) -> None:
    """Held-out devices have other data than the devices on which models are trained.

    A few small devices may hold the same by chance, such as one short text. So the check fails only
    if most of the compared held-out devices have exactly the examples of another device.
    """
    source = make()
    population = np.arange(_COMPARED_DEVICES, dtype=np.uint64)
    trained = {
        _content(source, device) for device in population[source.examples_on(population) > 0]
    }
    held_out = _held_out(source)
    shared = [int(device) for device in held_out if _content(source, device) in trained]
    assert 2 * len(shared) <= held_out.size, (
        f"{len(shared)} of {held_out.size} held-out devices, such as {shared[:1]}, have exactly "
        f"the examples of a device from 0 to {_COMPARED_DEVICES - 1}, so models would be evaluated "
        "on their training data; ids from 2^40 on (FIRST_HELD_OUT) must have data of their own "
        "(id % n gives them that of devices, and so does torch's manual_seed(id), of which only "
        "the last 32 bits count)"
    )


CHECKS = (
    check_fields_say_what_examples_are,
    check_examples_have_the_shapes_and_kinds_of_their_fields,
    check_examples_belong_to_the_device,
    check_examples_stay_the_same,
    check_counts_belong_to_the_device,
    check_held_out_devices_have_examples,
    check_held_out_data_is_of_no_device,
)


def _some(source: ExampleSource) -> tuple[Ids, Integers]:
    """Returns devices that have examples, and positions [G, 5] of some of them."""
    counts = source.examples_on(DEVICES)
    has_examples = counts > 0
    devices = DEVICES[has_examples]
    assert devices.size, (
        f"none of the devices {DEVICES.tolist()} has an example; give the suite a source in which "
        "some have"
    )
    # Out of order, and with repeats if a device has few.
    steps = 3 * np.arange(5)
    return devices, steps[None, :] % counts[has_examples, None]


def _held_out(source: ExampleSource) -> Ids:
    """Returns some held-out devices that have examples."""
    assert source.held_out_devices > 0, (
        "`held_out_devices` is 0; keep some data for evaluation, under the ids from 2^40 on"
    )
    count = min(source.held_out_devices, _COMPARED_HELD_OUT)
    devices = FIRST_HELD_OUT + np.arange(count, dtype=np.uint64)
    devices = devices[source.examples_on(devices) > 0]
    assert devices.size, (
        f"none of the first {count} held-out devices has an example; models could not be evaluated"
    )
    return devices


def _examples(source: ExampleSource, devices: Ids, positions: Integers) -> Examples:
    try:
        return source.examples(devices, positions)
    except IndexError as error:
        counts = source.examples_on(devices).tolist()
        raise AssertionError(
            f"examples() of devices {devices.tolist()} at positions {positions.tolist()} raised "
            f"{error!r}, but examples_on() gave {counts}; every position below a count must exist"
        ) from error


def _assert_form(source: ExampleSource, devices: Ids, positions: Integers) -> None:
    examples = _examples(source, devices, positions)
    assert examples.keys() == source.fields.keys(), (
        f"examples() gave {sorted(examples)}, and `fields` names {sorted(source.fields)}; give the "
        "same"
    )
    for name, field in source.fields.items():
        values = examples[name]
        shape = (*positions.shape, *field.shape)
        assert values.shape == shape, (
            f"examples() gave {name!r} of shape {values.shape}; devices, positions and "
            f"{field.shape} of its Field make {shape}"
        )
        kind = np.dtype(field.dtype)
        assert values.dtype == kind, (
            f"examples() gave {name!r} as {values.dtype}; {field.kind!r} fields are {kind} "
            f"(.astype(np.{kind}))"
        )
        if field.kind == "real":
            assert np.isfinite(values).all(), f"{name!r} has numbers that are not finite; clean it"
            continue
        assert 0 <= values.min() <= values.max() < field.values, (
            f"{name!r} has numbers from {values.min()} to {values.max()}; its Field says 0 to "
            f"{field.values - 1}: correct `values`, or the numbers"
        )
        _assert_padding_is_last(name, field, values)


def _assert_padding_is_last(name: str, field: Field, values: NDArray) -> None:
    # Models assume that no word follows padding.
    if field.padding is None or not field.shape:
        return
    is_padding = values == field.padding
    is_followed = is_padding[..., :-1] & ~is_padding[..., 1:]
    assert not is_followed.any(), (
        f"{name!r} has padding ({field.padding}) before other tokens; pad texts at their end"
    )
    assert not is_padding.all(axis=-1).any(), (
        f"{name!r} has a text of only padding; leave it out, and do not count it as an example"
    )


def _content(source: ExampleSource, device: np.uint64) -> tuple[int | bytes, ...]:
    """Returns count and first examples of a device in a form that can be compared."""
    device_ids = np.array([device])
    count = int(source.examples_on(device_ids)[0])
    positions = np.arange(min(count, _COMPARED_EXAMPLES))[None, :]
    examples = _examples(source, device_ids, positions)
    return count, *(examples[name].tobytes() for name in sorted(examples))
