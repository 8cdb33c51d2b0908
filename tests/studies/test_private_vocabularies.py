"""Studies of runs with a private vocabulary or a question pay for them, or refuse."""

from pathlib import Path

import pytest
from drawn_runs import ONLY_MODELS, paid, words

from fedray.base.errors import InputError
from fedray.scenario import Scenario
from fedray.studies.compare import audits_of
from fedray.studies.equal_privacy import compare_mechanisms
from fedray.studies.plan import PlanTarget, make_plan


def test_no_study_meets_a_target_by_the_model_only(tmp_path: Path) -> None:
    _, trace = paid(tmp_path)
    own = Scenario.from_tables(trace.scenario, directory=trace.path)
    with pytest.raises(InputError, match=ONLY_MODELS):
        compare_mechanisms(trace, ["tree"], tmp_path / "m", epsilon=3.0, trust_code=True)
    with pytest.raises(InputError, match=ONLY_MODELS):
        make_plan(own, PlanTarget(3.0, 1e-8), [24.0])


def test_compared_trainings_pay_for_their_own_vocabularies(tmp_path: Path) -> None:
    """Two vocabularies of equal words and other costs are two audits, at the delta of the composition."""
    each, trace = paid(tmp_path)
    dear = Scenario.from_tables(trace.scenario, directory=trace.path)
    tables = {**trace.scenario, "data": words(each, 1.0)}
    cheap = Scenario.from_tables(tables, directory=trace.path)
    audits = audits_of([(dear, None, trace), (cheap, None, trace)], 1e-8)
    found = [audit.basis.by_name["enforced"] for audit in audits]
    assert found[0].epsilon > found[1].epsilon > 1.3
    assert [each.delta for each in found] == pytest.approx([3e-8, 3e-8])
