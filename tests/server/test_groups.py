"""Groups of a round: which devices train together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.server.learning import training
from fedray.server.learning.training import balanced_groups, group_size

LOADS = st.lists(st.integers(0, 10**6), min_size=1, max_size=200).map(
    lambda loads: np.array(loads, np.int64)
)


@given(LOADS, st.integers(1, 40))
def test_groups_part_the_devices_in_descending_order_of_their_loads(loads, size: int) -> None:
    groups = balanced_groups(loads, size)
    places = np.concatenate(groups)
    assert sorted(places) == list(range(loads.size))
    assert (np.diff(loads[places]) <= 0).all()
    assert max(group.size for group in groups) <= size
    assert min(group.size for group in groups) > 0


@given(LOADS, st.integers(1, 40))
def test_no_group_of_several_devices_has_more_than_twice_its_share(loads, size: int) -> None:
    share = loads.sum() / -(-loads.size // size)
    for group in balanced_groups(loads, size):
        assert group.size == 1 or loads[group].sum() <= 2 * share


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 9))
def test_devices_of_equal_loads_stay_in_order_in_groups_of_equal_size(
    devices: int, size: int, load: int
) -> None:
    groups = balanced_groups(np.full(devices, load), size)
    expected = np.array_split(np.arange(devices), -(-devices // size))
    assert [group.tolist() for group in groups] == [group.tolist() for group in expected]


@pytest.mark.parametrize(
    ("parameters", "devices"), [(1, 16), (32_768, 16), (196_608, 8), (2**20, 1), (2**30, 1)]
)
def test_groups_of_large_models_are_smaller(parameters: int, devices: int) -> None:
    assert training.MOST_PARAMETERS == 3 * 2**19
    assert group_size(16, parameters) == devices
