"""Trained runs in the terminal and on their pages: comparisons, and models on devices."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedray.base.rounding import in_words, up
from fedray.report.text import Paragraph, Piece, TextTable

Document = Mapping[str, Any]


def training_text(title: str, rows: list[list[str]], divergence: str) -> Iterator[Piece]:
    """A trained run: what was trained, and that it diverged if it did.

    Args:
        title: of the table.
        rows: as `TrainedRun.rows` gives them, or some of these.
        divergence: of the trained run.
    """
    yield TextTable(title, rows, has_heading=False)
    if divergence:
        yield Paragraph("WARNING   ", divergence)
        yield ""


def comparison_run_rows(comparison: Document) -> list[list[str]]:
    """Every run of a comparison: a heading, then a row each.

    Args:
        comparison: as `Comparison.to_json` gives it.
    """
    names = [metric["name"] for metric in comparison["metrics"]]
    has_epsilon = any(group["epsilon"] is not None for group in comparison["groups"])
    # Without noise there is no privacy to be compared.
    kinds = ("observed", "enforced") if has_epsilon else ()
    heading = ["run", "setting", "seed", "rounds"]
    heading += [_heading(metric) for metric in comparison["metrics"]]
    heading += [f"{what} {kind}" for what in ("rho", "epsilon") for kind in kinds]
    heading += ["bits per parameter", "bytes per upload", "seconds per round"]
    rows = []
    for group in comparison["groups"]:
        spent = [_spent(group["rho"], kind, 6) for kind in kinds]
        spent += [_spent(group["epsilon"], kind, 4) for kind in kinds]
        for run in group["runs"]:
            setting = [group["label"], str(run["seed"]), f"{run['rounds']:,}"]
            measures = [measured_text(run["metrics"][name]) for name in names]
            rows.append([run["path"], *setting, *measures, *spent, *_costs(run)])
    return [heading, *rows]


def comparison_mean_tables(comparison: Document) -> list[TextTable]:
    """Means over seeds, and differences to the first setting: a table per metric, with a row per
    setting.

    Args:
        comparison: as `Comparison.to_json` gives it.
    """
    groups = comparison["groups"]
    heading = ["setting", "seeds", "mean", "pairs", f"difference from {groups[0]['label']}"]
    tables = []
    for metric in comparison["metrics"]:
        rows = [heading]
        for group in groups:
            mean = group["means"][metric["name"]]
            cells = [group["label"], str(mean["count"]), _interval(mean, ".4f")]
            found = (group["differences"] or {}).get(metric["name"])
            # The first setting is what the others are compared with.
            paired = ["", ""] if found is None else [str(found["count"]), _interval(found, "+.4f")]
            rows.append([*cells, *paired])
        title = f"{_heading(metric)}: {metric['better']} is better"
        tables.append(TextTable(title[:1].upper() + title[1:], rows))
    return tables


def comparison_setting_rows(comparison: Document) -> list[list[str]]:
    """Keys of the scenario in which settings differ: a heading, then a row each.

    Args:
        comparison: as `Comparison.to_json` gives it.
    """
    groups = comparison["groups"]
    rows = [
        [key, *(_setting(group["settings"].get(key)) for group in groups)]
        for key in comparison["differing_keys"]
    ]
    return [["key", *(group["label"] for group in groups)], *rows]


def pretraining_rows(pretrained: Document) -> list[list[str]]:
    """How a model fared on public data: a heading, then a row per evaluation.

    Args:
        pretrained: as `Pretrained.to_json` gives it.
    """
    steps = pretrained["steps"]
    rows = []
    for step in steps:
        measures = [measured_text(each) for each in step["metrics"].values()]
        rows.append([f"{step['step']:,}", _number(step["train_loss"]), *measures])
    names = [name.replace("_", " ") for name in steps[0]["metrics"]]
    return [["step", "train loss", *names], *rows]


def on_devices_tables(found: Document, is_brief: bool = False) -> list[TextTable]:
    """A model on the population's devices: a table per metric, with a row per group.

    Args:
        found: as `OnDevices.to_json` gives it.
        is_brief: whether every second quantile will do, which a terminal has room for.
    """
    # Every second one keeps the ends and the median.
    step = 2 if is_brief else 1
    kinds = {
        "all": "all",
        "participations": "took part",
        "trained": "trained",
        "zone": "time zone",
    }
    quantiles = [f"{100 * each:g} %" for each in found["quantiles"][::step]]
    heading = ["by", "group", "devices", "mean", "error", *quantiles]
    tables = []
    for metric in found["metrics"]:
        rows = [heading]
        for group in found["groups"]:
            measured = group["metrics"][metric["name"]]
            cells = [measured["value"], measured["standard_error"], *measured["quantiles"][::step]]
            kind = kinds[group["by"]]
            rows.append([kind, group["label"], f"{group['devices']:,}", *map(_number, cells)])
        title = f"{_heading(metric)} on devices: {metric['better']} is better"
        tables.append(TextTable(title[:1].upper() + title[1:], rows))
    return tables


def measured_text(measured: Document) -> str:
    """A figure with its standard error, as "0.1234 (0.0021)"; a dash where it is not known.

    Args:
        measured: value and standard error of a metric, as JSON has them.
    """
    error = measured["standard_error"]
    return _number(measured["value"]) + (f" ({error:.4f})" if error is not None else "")


def _heading(metric: Document) -> str:
    name = metric["name"].replace("_", " ")
    return f"{name} ({metric['unit']})" if metric["unit"] else name


def _spent(figures: Document | None, kind: str, decimals: int) -> str:
    value = figures[kind] if figures is not None else None
    return "-" if value is None else up(value, decimals)


def _costs(run: Document) -> list[str]:
    """What a run cost: bits of a parameter, bytes of an upload, seconds of a round."""
    costs = (
        (run["bits_per_parameter"], ".4g"),
        (run["bytes_per_upload"], ",d"),
        (run["seconds_per_round"], ".4g"),
    )
    return ["-" if value is None else format(value, form) for value, form in costs]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(estimate: Document, form: str) -> str:
    """A mean and how far its interval goes, as "0.1234 ± 0.0021"."""
    if estimate["mean"] is None:
        return "-"
    mean = format(estimate["mean"], form)
    if estimate["low"] is None:
        return mean
    return f"{mean} ± {(estimate['high'] - estimate['low']) / 2:.4f}"


def _setting(value: Any) -> str:
    """A value of a scenario, with every digit: a rounded one may look like that of another
    setting."""
    if value is None:
        return "-"
    text = in_words(value)
    # 64 characters are a SHA-256; its first 12 are enough to tell two files apart.
    return text[:12] if isinstance(value, str) and len(text) == 64 else text
