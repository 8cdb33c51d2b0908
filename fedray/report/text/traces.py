"""Imported logs in the terminal: what `fedray import` prints."""

import numpy as np

from fedray.base.rounding import counted
from fedray.imports.log_times import shown_range
from fedray.trace.imported import ImportedTrace


def import_rows(trace: ImportedTrace) -> list[tuple[str, str]]:
    """What was made of a log, and what was left out: a name and words in each row.

    Args:
        trace: the log, imported.
    """
    run = trace.run
    last = run["rounds"] - 1
    rows = [
        (
            "participations",
            f"{run['rows']:,} of {counted(run['devices'], 'device')}, "
            f"from {counted(run['rows_read'], 'row')}",
        ),
        ("unit", f"one {trace.unit}"),
        (
            "rounds",
            f"{run['rounds']:,}, the log's {trace.round_label(0)} to {trace.round_label(last)}",
        ),
    ]
    if run["where"]:
        conditions = " and ".join(run["where"])
        rows.append(("filtered", f"{run['filtered_rows']:,} rows without {conditions}"))
    rows += [
        ("left out", f"{counted(each.rows, 'row')} {each.reason}, such as {each.example}")
        for each in trace.left_out
    ]
    times = trace.round_times()
    if times is not None:
        form = run["times"]["form"] or run["times"]["rounds_file_form"]
        known = np.concatenate(times)
        # Times of a trace count from its origin, and readers know those of their log.
        known = run["times"]["origin"] + known[np.isfinite(known)]
        first, end = shown_range(known.min(), known.max())
        rows.append(("times", f"{form}; from {first} to {end}"))
    rows += [("rests on", text) for text in trace.assumptions]
    return [*rows, ("trace", str(trace.path))]
