"""A verdict is its remarks: a further one is a function and a line, and stands wherever it should."""

import pytest

from fedray.audit import verdict
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.verdict import REMARKS, AuditVerdict, Remark
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
