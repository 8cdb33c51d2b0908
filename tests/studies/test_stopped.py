"""Trainings of one trace of which some stopped early, side by side."""

from pathlib import Path

import pytest

import fedray
from fedray.audit.auditing import audit_trace
from fedray.base.errors import InputError
from fedray.runs.learning import train
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.studies.compare import PLANNED
from tests.simulation.test_stop import HERE, SMALL_MODEL, stopping


def test_a_training_that_stopped_is_compared_with_one_of_the_whole_trace(
    small, tmp_path: Path
) -> None:
    """Each after its own last round, with the privacy of its own rounds, and of all that were planned."""
    rules = ("participation.max_participations=2", "participation.timer_hours=0.5")
    scenario = small(*SMALL_MODEL, *rules, "privacy.mechanism={kind='tree'}")
    trace = simulate(scenario, HERE, tmp_path / "whole")
    quick = scenario.with_overrides("training.server.momentum=0.5")
    long = train(trace, scenario, HERE, tmp_path / "long")
    short = train(trace, quick, HERE, tmp_path / "short", stopping(7))
    other = train(trace, quick.with_overrides("training.seed=9"), HERE, tmp_path / "b", stopping(4))
    # What is trained on the trace that the stop has left, and stops before its end.
    shorter = train(short.trace_path, quick, HERE, tmp_path / "c", stopping(3))
    digests = {each.whole_trace_digest for each in (long, short, other, shorter)}
    assert digests == {trace.digest}
    assert len({each.trace_digest for each in (long, short, other, shorter)}) == 4
    with pytest.raises(InputError, match="give that trace"):
        fedray.compare_runs([long, short], simulate(small(), HERE, tmp_path / "unlike"))
    for given in (trace, short.trace_path, None):
        found = fedray.compare_runs([long, short, other], given)
        whole, stopped = found.groups
        assert [each.rounds for each in found.groups] == ["12", "4 to 7 of 12"]
        assert f"{whole.name} 12, {stopped.name} 4 to 7 of 12" in found.answer
        assert "rounds" in found.tables()[0].columns
        (used,) = audit_trace(short).mechanisms
        assert used.planned is not None
        assert stopped.epsilon == {
            "observed": used.observed.epsilon,
            "enforced": used.planned.epsilon,
        }
        assert whole.epsilon is not None
        assert stopped.epsilon is not None
        # Both rest on all rounds of the trace that they were given.
        assert whole.epsilon["enforced"] == stopped.epsilon["enforced"]
        assert any(PLANNED in table.method for table in found.tables())
        assert stopped.finals("loss")[scenario.training_seed] == short.last_evaluation()["loss"][0]
        (curve,) = (each for each in found.figures() if each.name == "loss")
        # A mean over seeds ends with the shortest.
        assert [each.x.max() for each in curve.series] == [12.0, 4.0]
    # A model ended the trace of this one, so it rests on any rounds of the plan.
    found = fedray.compare_runs([long, shorter])
    assert any(PLANNED in each for each in found.warnings)
    # A run that stopped has no longer trace.
    run = run_scenario(quick, HERE, tmp_path / "run", stopping(7))
    assert run.trained is not None
    with pytest.raises(InputError, match=r"stopped after 7 of 12 rounds, where its trace ends"):
        fedray.compare_runs([long, run.trained])
