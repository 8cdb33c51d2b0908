"""What notebooks show of each result: the tables of its page, and its figures as SVG.

An SVG needs no script, so that it is seen wherever a notebook is; it is black on white as in files.
"""

from collections.abc import Callable, Iterable, Sequence
from pkgutil import resolve_name
from typing import Any

from fedray.base.errors import InputError
from fedray.base.extras import missing_extra
from fedray.base.result import Drawing, Result
from fedray.base.rounding import given
from fedray.report.figure import Shown
from fedray.report.files import figure_svg
from fedray.report.page import PageTable, render_fragment


def html_of(result: Result) -> str:
    """The line of a result and its tables, as HTML that loads nothing."""
    return render_fragment(repr(result), _of_kind(TABLES, result)(result))


def drawing_of(result: Result, names: Sequence[str] = ()) -> Drawing:
    """The figures of a result, drawn; see `DrawnResult.plot`."""
    figures = tuple(resolve_name(_of_kind(FIGURES, result))(result))
    known = [each.name for each in figures]
    # A text is a sequence too, whose letters would be taken for names.
    chosen = [names] if isinstance(names, str) else names
    for name in chosen:
        if name not in known:
            raise InputError(
                f"names={name!r} is no figure of this {type(result).__name__}; it has "
                f"{', '.join(known) or 'none'}"
            )
    if chosen:
        figures = tuple(each for each in figures if each.name in chosen)
    try:
        return Drawing({each.name: figure_svg(each) for each in figures})
    except ModuleNotFoundError as error:
        # Drawing needs an extra, and the error names the command that installs it.
        if (lacks := missing_extra(error)) is not None:
            raise lacks from None
        raise


def _of_kind(entries: dict[str, Any], result: Result) -> Any:
    """The entry of the class of a result, or of the nearest class above it."""
    # Names of classes will do, so that no class need be imported for this.
    return next(entries[each.__name__] for each in type(result).__mro__ if each.__name__ in entries)


def _listed(rows: Iterable[Sequence[str]], title: str = "") -> PageTable:
    """Names and values, a row each."""
    return PageTable(title, [["what", "is"], *(list(row) for row in rows)])


def _trace_tables(trace: Any) -> list[PageTable]:
    from fedray.report.tables import classes_table, outcomes_table

    run = trace.run
    facts = [
        ("scenario", trace.scenario["name"]),
        ("seed", str(run["seed"])),
        ("ended", run["ended"]),
        ("rounds (committed)", f"{trace.committed_rounds:,}"),
        ("digest", trace.digest[:16]),
        ("path", str(trace.path)),
    ]
    tables = [_listed(facts), outcomes_table(trace.outcome_counts())]
    classes = run.get("classes", ())
    return [*tables, *([classes_table(classes)] if classes else [])]


def _imported_tables(trace: Any) -> list[PageTable]:
    from fedray.report.text.traces import import_rows

    return [_listed(import_rows(trace))]


def _audit_tables(audit: Any) -> list[PageTable]:
    from fedray.report.tables import findings_table
    from fedray.report.text.audits import guarantee_rows, participation_rows

    document = audit.to_json()
    tables = [_listed(participation_rows(document))]
    for each in document["mechanisms"]:
        noise, delta = each["noise_multiplier"], each["guarantees"][0]["delta"]
        known = "Noise not known" if noise is None else f"Noise multiplier {given(noise)}"
        note = f"{known}; epsilon at delta {given(delta)}."
        tables.append(PageTable(each["name"], guarantee_rows(each, document["findings"]), note))
    return [*tables, *([findings_table(document["findings"])] if document["findings"] else [])]


def _statement_tables(statement: Any) -> list[PageTable]:
    from fedray.report.tables import statement_table

    return [statement_table(statement.to_json()["lines"])]


def _trained_tables(trained: Any) -> list[PageTable]:
    return [_listed(trained.rows())]


def _sweep_tables(result: Any) -> list[PageTable]:
    from fedray.report.text.studies import crossing_rows, sweep_rows
    from fedray.studies.sweep.page import sweep_notes

    document = result.to_json()
    cells = PageTable("Cells", sweep_rows(document, True), " ".join(sweep_notes(result)))
    crossings = crossing_rows(document)
    return [*([PageTable("Crossings", crossings)] if len(crossings) > 1 else []), cells]


def _plan_tables(plan: Any) -> list[PageTable]:
    from fedray.report.text.studies import plan_rows, timer_rows
    from fedray.studies.plan_page import plan_sentences

    document = plan.to_json()
    styles = ["marked" if each == plan.best else "" for each in plan.candidates]
    return [
        PageTable(
            "What a longer timer costs", timer_rows(document), " ".join(plan_sentences(plan))
        ),
        PageTable("Candidates", plan_rows(document, True), " ".join(plan.warnings), styles),
    ]


def _fit_tables(fit: Any) -> list[PageTable]:
    from fedray.report.text.studies import fit_rows

    return [PageTable("", fit_rows(fit.to_json()))]


def _habit_fit_tables(fit: Any) -> list[PageTable]:
    from fedray.report.text.habits import estimate_rows, fit_sentence, held_rows, statistic_rows

    document = fit.to_json()
    return [
        PageTable("Parameters", estimate_rows(document), fit_sentence(document)),
        PageTable("Not fitted", held_rows(document)),
        PageTable("Statistics", statistic_rows(document)),
    ]


def _comparison_tables(comparison: Any) -> list[PageTable]:
    from fedray.report.text.training import comparison_mean_tables, comparison_run_rows
    from fedray.studies.compare import PAIRED

    document = comparison.to_json()
    means = comparison_mean_tables(document)
    return [
        *(PageTable(each.title, each.rows, PAIRED) for each in means),
        PageTable("Runs", comparison_run_rows(document)),
    ]


def _reproduced_tables(result: Any) -> list[PageTable]:
    return [PageTable(each.title, each.rows) for each in result.tables]


def _on_devices_tables(found: Any) -> list[PageTable]:
    from fedray.report.text.training import on_devices_tables

    notes = " ".join(found.notes)
    return [
        PageTable(each.title, each.rows, notes) for each in on_devices_tables(found.to_json(), True)
    ]


def _figures_tables(figures: Any) -> list[PageTable]:
    from fedray.report.text.mechanisms import figures_rows

    return [_listed(figures_rows(figures.to_json()))]


def _calibration_tables(calibration: Any) -> list[PageTable]:
    from fedray.report.text.mechanisms import calibration_rows

    document = calibration.to_json()
    note = f"Observed: {document['observed']['reason']}."
    return [PageTable("", calibration_rows(document), note)]


TABLES: dict[str, Callable[[Any], list[PageTable]]] = {
    "Audit": _audit_tables,
    "Comparison": _comparison_tables,
    "Figures": _figures_tables,
    "Fit": _fit_tables,
    "HabitFit": _habit_fit_tables,
    "ImportedTrace": _imported_tables,
    "OnDevices": _on_devices_tables,
    "Plan": _plan_tables,
    "Reproduced": _reproduced_tables,
    "Statement": _statement_tables,
    "SweepResult": _sweep_tables,
    "Trace": _trace_tables,
    "TraceCalibration": _calibration_tables,
    "TrainedRun": _trained_tables,
}
"""What makes the tables of a result, by the name of its class."""


def _plan_figures(plan: Any) -> list[Shown]:
    from fedray.studies.plan_page import plan_figure

    return [plan_figure(plan)]


def _reproduced_figures(result: Any) -> list[Shown]:
    return list(result.figures)


# Places are texts, so that no module of figures is loaded before one is drawn.
FIGURES = {
    "Audit": "fedray.report.figures:audit_figures",
    "Comparison": "fedray.studies.compare_page:comparison_figures",
    "HabitFit": "fedray.studies.habits.page:habit_fit_figures",
    "OnDevices": "fedray.studies.on_devices_page:on_devices_figures",
    "Plan": "fedray.notebook:_plan_figures",
    "Reproduced": "fedray.notebook:_reproduced_figures",
    "SweepResult": "fedray.studies.sweep.page:sweep_figures",
    "Trace": "fedray.report.figures:trace_figures",
    "TrainedRun": "fedray.report.trained_page:trained_figures",
}
"""Where the function is that makes the figures of a result, by the name of its class."""
