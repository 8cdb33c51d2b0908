"""Held-out devices: the audit draws them by code of its own, and finds those of the simulator."""

import numpy as np
import pytest

from fedray.audit.members import are_members
from fedray.wire.members import are_members as simulated

IDS = np.concatenate([np.arange(3000), 2**32 + np.arange(3000), 2**40 + np.arange(3000)])


@pytest.mark.parametrize("seed", [0, 3, 2**63 - 1])
@pytest.mark.parametrize("members", [(0.0, 1.0), (0.3, 1.0), (0.0, 0.3), (0.2, 0.7)])
def test_the_audit_draws_the_members_of_the_simulator(small, seed: int, members) -> None:
    scenario = small(f"seed={seed}", f"participation.members={list(members)}")
    found = are_members(scenario, IDS.astype(np.uint64))
    assert np.array_equal(found, simulated(scenario, IDS.astype(np.uint64)))
    # Five standard deviations of a fair draw of 9,000 devices.
    share = members[1] - members[0]
    assert abs(found.mean() - share) <= 5 * np.sqrt(share * (1 - share) / IDS.size)
