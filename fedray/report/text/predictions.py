"""Predictions of published runs in the terminal and on their page: what was fitted on what, scores,
and what moves the figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedray.report.table import Paragraph, Piece, Table

Document = Mapping[str, Any]


def prediction_tables(study: Document) -> list[Table]:
    """The predictions, what other methods say, and two tables of scores.

    Args:
        study: as `PredictionStudy.to_json` gives it.
    """
    runs = study["predictions"]
    heading = ["run", "predicted", "90 %", "published", "k", "days", "reach", "needed"]
    predicted = [heading, *map(_predicted_cells, runs)]
    methods = ["N / goal", "renewal", "one reach", "other task", "own reach", "which is"]
    others = [["run", "published", *methods], *map(_other_cells, runs)]
    scores_heading = ["method", "fitted on", "runs", "mean error", "median", "k right"]
    scores = [scores_heading, *map(_score_cells, study["scores"])]
    pace_heading = ["mechanism", "pace inside", "distance", "reach above 1"]
    pace = [pace_heading, *map(_pace_cells, study["pace"])]
    return [
        Table.headed(
            "Min-sep, predicted by the runs of other locales alone; k and days / published",
            predicted,
        ),
        Table.headed("Min-sep by every method", others),
        Table.headed("Errors of log min-sep over the published runs", scores),
        Table.headed("Relative pace of the published runs where min-sep is given", pace),
    ]


def prediction_notes(study: Document) -> list[str]:
    """What is to be known to read the tables, a paragraph each.

    Args:
        study: as `PredictionStudy.to_json` gives it.
    """
    chosen = sorted({each["mechanism"] for each in study["predictions"]})
    share, wait_hours = study["renewal"]
    return [
        "Leave one locale out: reach and mechanism of a prediction are those that fit the "
        "published runs of all other locales best, by absolute errors of log min-sep and of log "
        "days outside those that k implies. Chosen: "
        + ", ".join(chosen)
        + ". Intervals are estimates: they "
        "hold if locales scatter log-normally, and so do seeds. k is as many timers as began in "
        "the predicted days.",
        "Needed: the reach that the row would need; >1 where the whole population is too small. "
        "Other task: by the reach that the locale's other row needs. Own reach: the scenario's, "
        "one per locale, under the availability model alone; on fitted rows its error says "
        "nothing, since it was chosen to be zero.",
        f"Renewal formula: min-sep = e N / goal T / (T + w), with timer T; over all published runs "
        f"e = {share:.3f} and w = {wait_hours:.0f} h.",
        "Relative pace where min-sep is given: every run has the reach that its own min-sep needs, "
        "so that only the mechanism moves the pace. Inside: it is among those that k implies. "
        "Distance: mean distance of its logarithm from there.",
        f"Simulated at {study['scale']:g} of population and report goal, {study['seeds']} seeds of "
        "each case.",
    ]


def prediction_pieces(study: Document) -> Iterator[Piece]:
    """Everything that the command prints.

    Args:
        study: as `PredictionStudy.to_json` gives it.
    """
    yield from prediction_tables(study)
    for note in prediction_notes(study):
        yield Paragraph("", note)


def sensitivity_tables(moved: Sequence[Document]) -> list[Table]:
    """A table per row: its own scenario first, then every setting.

    Args:
        moved: as `Moved.to_json` gives them.
    """
    tables = []
    for name in dict.fromkeys(each["row"] for each in moved):
        rows = [["setting", "min-sep", "", "k", "days", ""]]
        for each in moved:
            if each["row"] == name:
                rows.append(_moved_cells(each))
        tables.append(Table.headed(name, rows))
    return tables


def _predicted_cells(run: Document) -> list[str]:
    low, high = run["published_days"]
    return [
        run["name"],
        f"{run['min_sep']:.0f}",
        f"{run['low']:.0f} to {run['high']:.0f}",
        f"{run['published_min_sep']}",
        f"{run['max_participations']} / {run['published_max_participations']}",
        f"{run['days']:.1f} / {low:.0f} to {high:.0f}",
        f"{run['reach']:.2f}",
        ">1" if run["own_reach"] is None else f"{run['own_reach']:.2f}",
    ]


def _other_cells(run: Document) -> list[str]:
    own_is = "fitted" if run["is_fitted"] else "predicted"
    return [
        run["name"],
        f"{run['published_min_sep']}",
        f"{run['upper_bound']:.0f}",
        f"{run['renewal']:.0f}",
        f"{run['min_sep']:.0f}",
        "-" if run["transferred"] is None else f"{run['transferred']:.0f}",
        "-" if run["fitted"] is None else f"{run['fitted']:.0f}",
        "-" if run["fitted"] is None else own_is,
    ]


def _score_cells(score: Document) -> list[str]:
    right = score["participations_right"]
    return [
        score["method"],
        score["fitted_on"],
        f"{score['runs']}",
        f"{score['error']:.3f}",
        f"{score['median_error']:.3f}",
        "-" if right is None else f"{right}",
    ]


def _pace_cells(pace: Document) -> list[str]:
    distance = f"{pace['distance']:.3f}"
    return [pace["mechanism"], f"{pace['inside']}", distance, f"{pace['beyond_all']}"]


def _moved_cells(moved: Document) -> list[str]:
    # The row without a setting is what the changes of the others refer to.
    is_own = not moved["setting"]
    return [
        moved["setting"] or "as it ships",
        f"{moved['min_sep']}",
        "" if is_own else f"{100 * moved['min_sep_change']:+.1f} %",
        f"{moved['max_participations']}",
        f"{moved['days']:.1f}",
        "" if is_own else f"{100 * moved['days_change']:+.1f} %",
    ]
