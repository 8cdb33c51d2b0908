"""The learning study in the terminal: mechanisms at equal privacy, with models."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fedray.base.rounding import counted, given, shown_noise, significant, up
from fedray.report.table import Paragraph, Piece, Table

Document = Mapping[str, Any]
CONVENTIONS = (
    "A final value is the mean of the evaluations in the last fifth of the rounds. Intervals are "
    "Student's over the seeds, 95 % each on its own; a gain is how much better the first is, seed "
    "by seed, and positive where the expected order holds. Noise multipliers of different "
    "mechanisms cannot be compared; the error is that of the prefix sums at the common rho."
)


def learning_pieces(study: Document) -> Iterator[Piece]:
    """What a study found: what all models share, then a table of values and one of gains for each
    metric.

    Args:
        study: as `LearningCurves.to_json` gives it.
    """
    yield Paragraph("", study_sentence(study))
    for metric in study["metrics"]:
        better = f"{metric['better']} is better"
        unit = ", ".join(part for part in (metric["unit"], better) if part)
        error = _shown(metric["evaluation_error"])
        title = f"Held-out {metric['name']} ({unit}; standard error of an evaluation {error})"
        yield Table.headed(title, value_rows(study, metric))
        yield Table.headed(f"Gains in {metric['name']}", gain_rows(metric))
    yield Paragraph("", CONVENTIONS)


def study_sentence(study: Document) -> str:
    """What all models share.

    Args:
        study: as `LearningCurves.to_json` gives it.
    """
    return (
        f"{study['scenario']}: {study['rounds']:,} rounds, min-sep {study['min_sep']}, at most "
        f"{counted(study['max_participations'], 'participation')}; rho {up(study['rho'])}, epsilon "
        f"{up(study['epsilon'])} at delta {given(study['delta'])}; {len(study['seeds'])} seeds "
        "of each mechanism"
    )


def value_rows(study: Document, metric: Document) -> list[list[str]]:
    """A heading, then a row per mechanism: its noise and its final value.

    Args:
        study: as `LearningCurves.to_json` gives it.
        metric: one of its metrics.
    """
    heading = ["mechanism", "noise multiplier", "error", metric["name"], "95 % interval"]
    return [
        heading,
        *(_value_cells(each, metric["mechanisms"][each["name"]]) for each in study["mechanisms"]),
    ]


def gain_rows(metric: Document) -> list[list[str]]:
    """A heading, then a row per pair of mechanisms: by how much the first is better, and whether
    that is what is expected.

    Args:
        metric: one of a study's metrics.
    """
    pairs = [*metric["order"], *metric["guesses"]]
    return [["expected", "gain", "95 % interval", ""], *map(_gain_cells, pairs)]


def _value_cells(mechanism: Document, value: Document) -> list[str]:
    return [
        mechanism["name"],
        shown_noise(mechanism["noise_multiplier"]),
        significant(mechanism["rms_prefix_error"]),
        _shown(value["mean"]),
        _interval(value),
    ]


def _gain_cells(pair: Document) -> list[str]:
    gain = pair["gain"]
    return [
        f"{pair['first']} >= {pair['second']}",
        _shown(gain["mean"], "+.4f"),
        _interval(gain, "+.4f"),
        pair["verdict"],
    ]


def _interval(value: Document, style: str = ".4f") -> str:
    return f"[{_shown(value['low'], style)}, {_shown(value['high'], style)}]"


def _shown(value: float | None, style: str = ".4f") -> str:
    return "-" if value is None or math.isnan(value) else f"{value:{style}}"
