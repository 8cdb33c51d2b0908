"""A verdict is its remarks: a further one is a function and a line, and stands wherever it should."""

import re
from pathlib import Path

import pytest

from fedray.audit import verdict
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.verdict import REMARKS, AuditVerdict, Remark
from fedray.imports.importer import import_log
from fedray.mechanisms.registry import Tree
from fedray.report.page import audit_page
from fedray.report.terminal import short_audit_text

PATTERNS = [[0, 2], [1, 3], [0]]
TEXT = "The log was kept by a lighthouse."


def with_remark(monkeypatch: pytest.MonkeyPatch, **flags: bool) -> None:
    monkeypatch.setattr(verdict, "REMARKS", (*REMARKS, lambda _: Remark(TEXT, **flags)))


def test_every_function_that_makes_a_remark_is_a_line_of_the_remarks() -> None:
    made = {each for name, each in vars(verdict).items() if name.startswith("on_")}
    assert made == {*REMARKS}
    assert len(made) == len(REMARKS)


@pytest.mark.parametrize("is_about_epsilon", [True, False])
def test_a_further_remark_is_said_everywhere_and_in_statements_if_about_epsilon(
    is_about_epsilon: bool, trace_of, monkeypatch
) -> None:
    with_remark(monkeypatch, is_about_epsilon=is_about_epsilon)
    audit = audit_trace(trace_of(PATTERNS, 4))
    terminal = " ".join(" ".join(map(str, short_audit_text(audit))).split())
    for said in (audit.verdict, audit.to_json()["verdict"], terminal, audit_page(audit)):
        assert TEXT in said
    assert (TEXT in privacy_statement(audit).summary) == is_about_epsilon


FIRST_SCREEN, WIDTH = 24, 80
"""Lines and columns of a terminal."""


def test_the_first_screen_has_the_verdict_then_the_guarantees_then_what_was_left_out(
    tmp_path: Path, trace_of, small, fedray_command, monkeypatch
) -> None:
    """Of an ordinary run, and of a log with a claim, rows without a device, and noticed repeats."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    keys = ("participation.timer_hours=0.0694", 'privacy.mechanism={kind = "tree"}')
    run = trace_of([[0, 3, 6], [1, 4], [2, 5]], 7, small(*keys))
    rows = "a,0\na,0\na,3\na,6\nb,1\nb,4\nc,2\nc,5\n,3\n"
    (tmp_path / "log.csv").write_text(f"device,round\n{rows}")
    log = import_log(
        tmp_path / "log.csv", "device", "round", 7, tmp_path / "log", leave_out_invalid=True,
        repeats="once",
    )  # fmt: skip
    claim = 'mechanism = "tree"\nnoise_multiplier = 4.0\nmin_sep = 5\nepsilon = 3.0\n'
    (tmp_path / "claim.toml").write_text(claim)
    checked = ("--claim", str(tmp_path / "claim.toml"))
    for path, options, names in (
        (run.path, (), ("observed", "observed limits", "enforced")),
        (log.path, checked, ("observed", "observed limits", "enforced", "claimed")),
    ):
        _, out, _ = fedray_command("--quiet", "audit", str(path), *options)
        lines = out.splitlines()
        screen = lines[:FIRST_SCREEN]
        assert all(len(line) <= WIDTH for line in screen)
        (title,) = [at for at, line in enumerate(screen) if line.startswith("Guarantees of ")]
        # Beside another table the subject of both stands above them.
        assert "per device" in " ".join(screen[: title + 2])
        assert "figures are" in out
        at = [next(i for i, e in enumerate(screen) if e.startswith(f"  {n}  ")) for n in names]
        assert at == sorted(at)
        # Each row says whether its figures are exact.
        assert all(re.search("exact|bound|not known|not proven", screen[row]) for row in at)
        later = [i for i, e in enumerate(lines) if re.match("left out|WARNING|note|7 rounds", e)]
        assert later
        assert min(later) > max(at) > title > 0
    assert any(line.startswith("WARNING") for line in lines)


@pytest.mark.parametrize("is_doubt", [True, False])
def test_a_doubt_leaves_a_claim_open_that_holds(
    is_doubt: bool, small, trace_of, monkeypatch
) -> None:
    with_remark(monkeypatch, is_doubt=is_doubt)
    own = small("privacy.noise_multiplier=3.0", 'privacy.mechanism={kind = "tree"}')
    claim = Claim(mechanism=Tree(), noise_multiplier=3.0, min_sep=2)
    audit = audit_trace(trace_of(PATTERNS, 4, own), claim=claim)
    assert audit.claim_holds
    assert AuditVerdict(audit).standing == ("open" if is_doubt else "holds")
