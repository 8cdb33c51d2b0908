"""`fedray pretrain`: train a model on public data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedray.commands.frame.output import print_json, print_line, print_pieces
from fedray.commands.frame.progress import progress_line


def pretrain(
    scenario: Path,
    public: Path,
    *,
    out: Path,
    overrides: list[str] | None = None,
    trust_code: bool = False,
    as_json: bool = False,
) -> None:
    """Train a scenario's model on public data, without devices, clipping or noise.

    A training starts from the written file if training.initial.file names it.

    Args:
        public: TOML file with steps, learning_rate, ... and a table data
        out (FILE): new safetensors file of the model
    """
    from fedray.base.table import read_table_file
    from fedray.runs.pretraining import pretrain as pretrain_on
    from fedray.scenario import Scenario
    from fedray.scenario.pretraining import Pretraining

    # The scenario is read before the public data, because a mistake in it costs no time.
    value = Scenario.from_toml(scenario, overrides or (), trust_code=trust_code)
    table = read_table_file(Pretraining, public, "public data")
    with progress_line("pretraining") as show:
        found = pretrain_on(value, table, out, show, trust_code=trust_code)
    if as_json:
        print_json(found.to_json())
        return
    _print_steps(found)
    print_line(f"model   {out}")


def _print_steps(found: Any) -> None:
    from fedray.base.rounding import number_text
    from fedray.report.table import Table

    # Every step has the metrics of the scenario's task.
    metrics = found.steps[0].evaluation.metrics
    cells = {
        "step": lambda step: f"{step.number:,}",
        "train loss": lambda step: number_text(step.train_loss),
        **{name.replace("_", " "): _measure_cell(name) for name in metrics},
    }
    title = f"Pretrained on {found.examples:,} examples; held-out metrics on the public data"
    print_pieces([Table.of(title, found.steps, cells)])


def _measure_cell(name: str) -> Callable[[Any], str]:
    from fedray.report.trained_page import measured_text

    return lambda step: measured_text(step.evaluation.metrics[name])
