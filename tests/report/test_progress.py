"""The progress bar never cuts a number, however narrow the terminal is."""

import io
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from fedray.messages import Measured, RunProgress, TrainingProgress
from fedray.report.progress import run_progress

PARTS = ["day 123 21:05", "eligible 12,345,678", "train loss 5.824", "accuracy 0.015"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_every_part_is_whole_or_not_there(width: int, monkeypatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    metrics, evaluation = (
        SimpleNamespace(train_loss=5.824),
        SimpleNamespace(metrics={"accuracy": Measured(0.015, 0.001)}),
    )
    seconds = 123 * 86_400 + 21 * 3600 + 5 * 60
    with run_progress(is_shown=True) as on_progress:
        on_progress(RunProgress(12_345, 100_000, seconds, 12_345_678))
        on_progress(TrainingProgress(12_345, 100_000, cast(Any, metrics), cast(Any, evaluation)))
    lines = [
        re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).strip()
        for line in re.split(r"[\r\n]", out.getvalue())
    ]
    last = [line for line in lines if line][-1]
    assert len(last) <= width
    assert "12345/100000" in last
    assert "…" not in last
    shown = [part for part in PARTS if part in last]
    assert shown[:1] == ["day 123 21:05"] or width < 60
    for part in PARTS:
        assert part in shown or part.split()[0] not in last
    if width >= 140:
        assert shown == PARTS
