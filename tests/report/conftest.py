"""A trained run, its audit and its page, for all tests of reports."""

import pytest

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.report.page import audit_page
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace


@pytest.fixture(scope="session")
def trained(small, tmp_path_factory) -> Trace:
    """12 rounds of 200 of 20,000 devices, timer of an hour, with a model."""
    scenario = small(
        "training.enabled=true",
        "training.evaluate_every=3",
        "description='<b>a & b</b>'",
        "participation.timer_hours=1.0",
    )
    return run_scenario(
        scenario, Placement(1, "in-process"), tmp_path_factory.mktemp("report") / "t"
    )


@pytest.fixture(scope="session")
def trained_audit(trained: Trace) -> Audit:
    return audit_trace(trained)


@pytest.fixture(scope="session")
def trained_page(trained: Trace, trained_audit: Audit) -> str:
    return audit_page(trained_audit)
