"""Members of a task (`participation.members`): devices that may serve it, by an addressed draw of
each device. The draw is the same for all tasks of a run, so tasks can divide the devices."""

import numpy as np

from fedray.base.arrays import BoolArray, UInt64Array
from fedray.base.rng import Stream, long_words, stream_key
from fedray.scenario import Scenario
from fedray.scenario.participation import EVERYBODY


def are_members(scenario: Scenario, device_ids: UInt64Array) -> BoolArray:
    """Returns which devices [N] may serve a scenario, [N]."""
    if scenario.participation.members == EVERYBODY:
        return np.ones(device_ids.size, np.bool_)
    low, high = scenario.participation.members
    words = long_words(stream_key(scenario.seed, Stream.MEMBER), device_ids, 0)
    # 53 bits, which a float holds exactly, so that the draw is below 1.
    drawn = (words >> np.uint64(11)) * 2.0**-53
    return (low <= drawn) & (drawn < high)
