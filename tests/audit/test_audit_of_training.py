"""A training is audited on its trace, with the mechanism and noise that it was trained with."""

import json
import shutil
from pathlib import Path

import pytest

import fedray
from fedray.base.errors import InputError, TraceCorrupt
from fedray.mechanisms import Tree
from fedray.runs.learning import scenario_to_train
from fedray.trace.learned_from import opened_training
from fedray.trace.schema import DOCUMENT_DIGEST, document_digest
from fedray.trace.trained import TRAINING_FILE

PATTERNS = [[0, 2], [1, 3], [0], [1, 2], [3]]
TREE = ('privacy.mechanism={kind="tree"}', "privacy.noise_multiplier=9.0")


@pytest.fixture
def trained(trace_of, trained_of, small):
    """Its trace has a timer that every device kept, so that the rules ensure something."""
    trace = trace_of(PATTERNS, 4, small("participation.timer_hours=0.02"))
    return trained_of("model", trace, {"accuracy": 0.5}, *TREE, knows_trace=True)


def test_the_command_has_the_figures_of_the_trace_with_its_mechanism_and_noise(
    trained, trace_of, tmp_path: Path, fedray_command
) -> None:
    page = tmp_path / "page.html"
    code, out, err = fedray_command("audit", str(trained.path), "--json", "--page", str(page))
    assert code == 0, err
    assert "as it was trained on the trace" in err
    document = json.loads(out)
    expected = fedray.audit_trace(tmp_path / "trace-0", 9.0, mechanism=Tree())
    assert document["mechanisms"][0]["name"] == "tree"
    assert document["guarantees"] == [each.to_json() for each in expected.guarantees]
    # Named as a what-if, they are not the run's; of the training they are.
    assert expected.supported_epsilon is None
    assert expected.basis.guarantee is not None
    assert document["supported_epsilon"] == expected.basis.guarantee.epsilon
    assert document["digest"] == trained.trace_digest
    text = page.read_text()
    assert "(of the run)" in text
    assert "noise_multiplier = 9.0" in text


def test_python_takes_the_training_its_folder_or_its_trace_with_it(trained, tmp_path: Path) -> None:
    """However it is named, the figures are those of its own noise, and not of the trace's."""
    trace, own = tmp_path / "trace-0", opened_training(trained)[2]
    audits = [
        fedray.audit_trace(trained),
        fedray.audit_trace(trained.path),
        fedray.audit_trace(str(trained.path)),
        fedray.audit_trace(trace, trained=trained),
        fedray.audit_trace(fedray.Trace.open(trace), scenario=own, trained=trained),
        fedray.audit_trace(trained, trained=trained),
    ]
    (expected,) = fedray.audit_trace(trace, 9.0, mechanism=Tree()).mechanisms
    (other,) = fedray.audit_trace(trace).mechanisms
    assert other.noise_multiplier != 9.0
    for audit in audits:
        assert audit.is_of_run
        assert audit.supported_epsilon == expected.enforced.epsilon
        assert audit.to_json() == audits[0].to_json()


def test_a_training_of_another_trace_or_scenario_is_refused(
    trained, trained_of, trace_of, small, tmp_path: Path
) -> None:
    longer = trace_of([[0, 2], [1]], 3)
    other = trained_of("other", longer, {"accuracy": 0.6}, knows_trace=True)
    for arguments, more, said in (
        ((longer,), {"trained": trained}, "was trained on"),
        ((trained,), {"trained": other}, "is another training than"),
        ((trained,), {"scenario": small()}, "is not that with which"),
        ((tmp_path / "trace-0",), {"scenario": small(), "trained": trained}, "is not that with"),
    ):
        with pytest.raises(InputError, match=said):
            fedray.audit_trace(*arguments, **more)


def test_a_trace_that_is_gone_or_another_is_refused_in_one_line(
    trained, trace_of, tmp_path: Path, fedray_command
) -> None:
    moved = tmp_path / "trace-0"
    moved.rename(tmp_path / "elsewhere")
    for _ in range(2):
        code, out, err = fedray_command("audit", str(trained.path))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"which is not at '{moved.resolve()}'; move it there" in err
        # Another trace in its place changes nothing.
        if not moved.exists():
            shutil.copytree(trace_of([[0]], 1).path, moved)
    shutil.rmtree(moved)
    (tmp_path / "elsewhere").rename(moved)
    assert fedray_command("audit", str(trained.path))[0] == 0


def test_runs_that_moved_with_their_trace_still_know_it(
    trained, trained_of, tmp_path: Path
) -> None:
    trace = fedray.Trace.open(tmp_path / "trace-0")
    other = trained_of("other", trace, {"accuracy": 0.6}, knows_trace=True)
    far = tmp_path / "far"
    far.mkdir()
    for path in (trained.path, other.path, trace.path):
        path.rename(far / path.name)
    for name, kind in (("model", "tree"), ("other", "blt")):
        _, found, scenario = opened_training(far / name)
        (used,) = fedray.audit_trace(found, scenario=scenario).mechanisms
        assert (found.path, used.strategy.kind) == (far / "trace-0", kind)
        assert used.enforced.epsilon is not None


def test_a_filter_counts_for_its_own_mechanism_only(trace_of, small) -> None:
    """The run excluded devices by its own mechanism, which ensures nothing for another one."""
    limits = ("privacy.at_limit=exclude", "privacy.stop_at={rho=50.0}")
    trace = trace_of(PATTERNS, 4, small(*limits))
    assert fedray.audit_trace(trace).mechanisms[0].filtered is not None
    given = small(*limits, *TREE)
    other = scenario_to_train(trace, given)
    audit = fedray.audit_trace(trace, scenario=other)
    assert audit.is_of_run
    assert audit.mechanisms[0].filtered is None


def test_a_scenario_that_was_changed_with_the_document_digest_is_refused(trained) -> None:
    document = json.loads((trained.path / TRAINING_FILE).read_text())
    document["scenario"]["privacy"]["noise_multiplier"] = 50.0
    document[DOCUMENT_DIGEST] = document_digest(document)
    (trained.path / TRAINING_FILE).write_text(json.dumps(document))
    with pytest.raises(TraceCorrupt, match="its scenario does not have the recorded digest"):
        opened_training(trained.path)
