"""Data that does not fit a task is refused in one line: the task, what it needs, what the data has."""

import pytest
from small_tasks import IMAGES, POINTS, TEXT, VECTORS, made

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import Field
from fedray.scenario.tasks import (
    ImageCnnTask,
    KeyboardLstmTask,
    LogisticTask,
    MlpTask,
    QuadraticTask,
)


@pytest.mark.parametrize(
    ("table", "fields", "says"),
    [
        (MlpTask(), TEXT, "needs data with real `inputs`.*whole `tokens` \\[7\\]"),
        (LogisticTask(), POINTS, "one class number each; the data has real `inputs` \\[4\\]"),
        (
            MlpTask(),
            {"inputs": Field((4,), "real"), "targets": Field((1,), "whole", 3)},
            "whole `targets` \\[1\\]",
        ),
        (QuadraticTask(), IMAGES, "needs data with real `inputs` \\[dimension\\].*\\[8, 7, 2\\]"),
        (ImageCnnTask(), VECTORS, "at least 6 x 6 pixels; the data has `inputs` \\[2, 3\\]"),
        (
            ImageCnnTask(),
            {"inputs": Field((3, 32, 32), "real"), "targets": Field((), "whole", 3)},
            "images \\[height, width, channels\\].*\\[3, 32, 32\\]",
        ),
        (KeyboardLstmTask(), IMAGES, "needs text.*real `inputs`"),
        (KeyboardLstmTask(), {"tokens": Field((1,), "whole", 9)}, "needs text.*\\[1\\]"),
    ],
)
def test_data_that_does_not_fit_is_refused(table, fields, says: str) -> None:
    with pytest.raises(ScenarioError, match=says) as refusal:
        made(table, fields)
    assert repr(table.kind) in str(refusal.value)
