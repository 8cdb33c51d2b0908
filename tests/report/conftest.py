"""A trained run, its audit and its page, for all tests of reports."""

import base64
import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from fedray.audit.audit import Audit, audit_trace
from fedray.pipeline import run_scenario
from fedray.placement import Placement
from fedray.report.page import render
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
    return render(trained, trained_audit)


@pytest.fixture(scope="session")
def script() -> Callable[[str, str], Any]:
    """What a page's script element holds, by the page and the element's id."""

    def content(page: str, name: str) -> Any:
        found = re.search(
            rf'<script type="([^"]+)" id="{name}">(.*?)</script>', page, flags=re.DOTALL
        )
        assert found is not None
        is_packed = found.group(1) == "text/plain"
        return json.loads(
            gzip.decompress(base64.b64decode(found.group(2))) if is_packed else found.group(2)
        )

    return content
