"""Tables of traces, imported logs and trained runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedray.audit.assumptions import assumptions_of_import
from fedray.base.rounding import counted, in_words
from fedray.imports.log_times import shown_range
from fedray.report.audits import classes_table
from fedray.report.groups import groups_tables
from fedray.report.table import Table
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun


def trace_tables(trace: Trace) -> list[Table]:
    """Returns the run of a `trace`, its selected devices by outcome, and its classes of devices."""
    run = trace.run
    facts = [
        ("scenario", trace.scenario["name"]),
        ("seed", str(run["seed"])),
        ("ended", run["ended"]),
        ("rounds (committed)", f"{trace.committed_rounds:,}"),
        ("digest", trace.digest[:16]),
        ("path", str(trace.path)),
    ]
    classes = run.get("classes", ())
    tables = [Table.facts("", facts), outcomes_table(trace.outcome_counts())]
    return [*tables, *([classes_table(classes)] if classes else [])]


def outcomes_table(counts: Mapping[str, int]) -> Table:
    """Returns the selected devices by outcome: `counts` and shares."""
    # A run may have selected no devices.
    total = max(1, sum(counts.values()))
    cells = {
        "outcome": lambda row: row[0],
        "devices": lambda row: f"{row[1]:,}",
        "share": lambda row: f"{100 * row[1] / total:.1f} %",
    }
    # Most runs have no filter.
    rows = [(name, count) for name, count in counts.items() if count or name != "excluded"]
    return Table.of("Selected devices", rows, cells)


def imported_tables(trace: ImportedTrace) -> list[Table]:
    """Returns participations and rounds of an imported log, the `trace`, and the rows that were
    left out."""
    run = trace.run
    rows_read = counted(run["rows_read"], "row")
    labels = (trace.round_label(0), trace.round_label(run["rounds"] - 1))
    facts = [
        (
            "participations",
            f"{run['rows']:,} of {counted(run['devices'], 'device')}, from {rows_read}",
        ),
        ("unit", f"one {trace.unit}"),
        ("rounds", f"{run['rounds']:,}, the log's {labels[0]} to {labels[1]}"),
    ]
    if run["where"]:
        conditions = " and ".join(run["where"])
        facts.append(("filtered", f"{run['filtered_rows']:,} rows without {conditions}"))
    facts += [
        ("left out", f"{counted(each.rows, 'row')} {each.reason}, such as {each.example}")
        for each in trace.left_out
    ]
    times = trace.round_times()
    if times is not None:
        form = run["times"]["form"] or run["times"]["rounds_file_form"]
        known = np.concatenate(times)
        # A trace counts time from its origin; readers know the times of their log.
        known = run["times"]["origin"] + known[np.isfinite(known)]
        first, end = shown_range(known.min(), known.max())
        facts.append(("times", f"{form}; from {first} to {end}"))
    facts += [("assumed", each.text) for each in assumptions_of_import(trace)]
    return [Table.facts("", [*facts, ("trace", str(trace.path))])]


def trained_tables(trained: TrainedRun) -> list[Table]:
    """Returns the training of a run, and its mechanism."""
    by_group = [table for each in trained.groups for table in groups_tables(each)]
    return [Table.facts("The trained run", trained.rows()), *by_group, mechanism_table(trained)]


def mechanism_table(trained: TrainedRun) -> Table:
    """Returns mechanism and clipping of a `trained` run."""
    privacy = trained.document["scenario"]["privacy"]
    mechanism = privacy["mechanism"]
    is_silent = mechanism["kind"] == "none"
    names = ("clip_norm",) if is_silent else ("noise_multiplier", "clip_norm", "delta")
    given = {name: privacy[name] for name in names}
    clipping = privacy.get("clipping", {"kind": "fixed"})
    clips = {f"clipping {name}": value for name, value in clipping.items() if name != "kind"}
    parameters = {**mechanism, **given, "clipping": clipping["kind"], **clips}
    note = "The assumptions behind its guarantees are below, and in the audit of this training."
    if is_silent:
        note = f"{NO_GUARANTEE.capitalize()}."
    return parameters_table(parameters, f"Mechanism: {mechanism['kind']}", note)


def parameters_table(parameters: Mapping[str, Any], title: str = "", note: str = "") -> Table:
    """Returns the parameters of a mechanism or a run, unrounded; None and empty ones are
    left out.

    Args:
        parameters: values by name.
        title: line above the table.
        note: paragraph that a reader needs.
    """
    known = {name: value for name, value in parameters.items() if value not in (None, [], ())}
    facts = [(name.replace("_", " "), in_words(value)) for name, value in known.items()]
    return Table.facts(title, facts, note)
