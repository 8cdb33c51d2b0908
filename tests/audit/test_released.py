"""Events of an audit: they have its figures, other tools confirm them, and they are read back."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.released import read_events
from fedray.base.errors import InputError
from fedray.mechanisms.registry import BLT, Dense, Tree

MECHANISMS = [
    Tree(),
    BLT(theta=(0.9, 0.5), omega=(0.2, 0.3)),
    Dense.from_matrix(np.tril(np.full((9, 9), 0.3)) + np.eye(9), "dense.npy"),
]


@pytest.fixture
def audited(trace_of):
    trace = trace_of([[0, 4, 8], [1, 5], [2, 3], [6], [7]], 9)
    return audit_trace(trace, noise_multiplier=2.0, delta=1e-6, mechanism=MECHANISMS)


def test_every_guarantee_that_has_figures_has_an_event_with_the_same(audited) -> None:
    events = audited.events
    known = [
        (mechanism.name, guarantee)
        for mechanism in audited.mechanisms
        for guarantee in (mechanism.observed, mechanism.observed_limits, mechanism.enforced)
        if guarantee.epsilon is not None
    ]
    assert len(events) == len(known) >= 3 * 2
    for event, (name, guarantee) in zip(events, known, strict=True):
        assert (event.mechanism, event.rho, event.epsilon) == (
            name,
            guarantee.rho,
            guarantee.epsilon,
        )


def test_events_are_read_back_with_the_same_epsilon(audited, tmp_path: Path) -> None:
    file = audited.write_events(tmp_path / "events.json")
    read = read_events(file)
    assert read == audited.events
    assert [each.epsilon for each in read] == [each.epsilon for each in audited.events]
    assert (tmp_path / f"{MECHANISMS[2].sha256}.npy").exists()


@pytest.mark.slow
def test_dp_accounting_composes_its_own_events_to_the_same_figures(audited, tmp_path) -> None:
    """The file's text is evaluated, as its reader would."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    document = json.loads(audited.write_events(tmp_path / "events.json").read_text())
    for entry in document["events"]:
        peer = entry["dp_accounting"]
        assert peer["rho"] == pytest.approx(entry["rho"], rel=1e-9)
        assert peer["pld_epsilon"] == pytest.approx(entry["epsilon"], rel=1e-3)
        assert peer["renyi_epsilon"] == entry["accountants"]["renyi"] >= entry["epsilon"]
        event = eval(peer["event"], vars(dp_accounting))
        found = PLDAccountant().compose(event).get_epsilon(entry["delta"])
        assert found == pytest.approx(entry["epsilon"], rel=2e-3)


def test_a_delta_for_which_dp_accounting_has_no_epsilon_leaves_its_figure_out(
    trace_of, tmp_path: Path
) -> None:
    """Its loss distributions are cut off at 1e-15 or so, and give infinity below."""
    audit = audit_trace(
        trace_of([[0], [1]], 2), noise_multiplier=2.0, delta=1e-30, mechanism=Tree()
    )
    (entry, *_) = json.loads(audit.write_events(tmp_path / "events.json").read_text())["events"]
    assert entry["dp_accounting"]["pld_epsilon"] is None
    assert entry["dp_accounting"]["renyi_epsilon"] >= entry["epsilon"] > 0


def test_without_noise_there_are_no_events(trace_of, tmp_path: Path) -> None:
    audit = audit_trace(trace_of([[0], [1]], 2), mechanism=[Tree()])
    assert all(each.event for each in audit.events)
    bare = replace(audit, mechanisms=())
    assert bare.events == ()
    with pytest.raises(InputError, match="no mechanism and noise multiplier are known"):
        bare.write_events(tmp_path / "events.json")


def test_the_command_writes_the_file_and_says_so(fedray_command, trace_of, tmp_path: Path) -> None:
    trace, file = trace_of([[0, 4], [1], [2], [3]], 5), tmp_path / "events.json"
    code, out, _ = fedray_command("audit", str(trace.path), "--events", str(file), "--json")
    printed = json.loads(out)
    assert (code, printed["events"]) == (0, str(file))
    observed = read_events(file)[0]
    assert observed.epsilon == printed["mechanisms"][0]["guarantees"][0]["epsilon"]
    code, out, err = fedray_command(
        "audit", str(trace.path), "--events", str(tmp_path / "no" / "folder.json")
    )
    assert code == 2
    assert "events" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda document: document | {"version": 9}, "has no format"),
        (lambda document: {"format": "fedray-events", "version": 1}, "lacks keys"),
        (lambda document: document | {"events": [{"delta": "x"}]}, "lacks keys"),
        (
            lambda document: (
                document | {"events": [document["events"][0] | {"event": {"kind": "gausian"}}]}
            ),
            "did you mean 'gaussian'",
        ),
        (lambda document: [document], "has no format"),
    ],
)
def test_what_is_no_file_of_events_is_refused_in_one_line(
    audited, tmp_path: Path, change, told: str
) -> None:
    file = audited.write_events(tmp_path / "events.json")
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(InputError, match=told) as error:
        read_events(file)
    assert "\n" not in str(error.value)


def test_a_missing_matrix_is_told(audited, tmp_path: Path) -> None:
    file = audited.write_events(tmp_path / "events.json")
    (tmp_path / f"{MECHANISMS[2].sha256}.npy").unlink()
    with pytest.raises(InputError, match="cannot be read as a"):
        read_events(file)
