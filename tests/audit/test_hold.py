"""A list of devices that must wait keeps a claim that was in danger."""

import pytest
from interrupted_runs import runs_in_danger

from fedray.audit.live.outlook import State


@pytest.mark.slow
def test_runs_that_continue_with_the_list_and_the_rule_keep_the_claim() -> None:
    """Ten of the runs of `interrupted_runs.py`; no bound of the forward guarantee may be too low, so
    none may break."""
    runs = list(runs_in_danger(10))
    helped = [run for run in runs if run.can_be_kept]
    assert all(run.kept_with for run in helped)
    assert all(run.kept_without for run in runs if run.state is State.KEPT)
    # The list is needed: most of these runs break the claim without it.
    assert sum(not run.kept_without for run in helped) >= 3
    assert all(0.0 < run.share_held <= 1.0 for run in helped)
