"""One self-contained HTML page for a trace and its audit: no network, light and dark, phone and print."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from fedray.atomic import write_whole
from fedray.audit.audit import Audit
from fedray.errors import InputError
from fedray.report.figure import Figure, Shown
from fedray.report.plotly_json import plotly_figure
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


def write_report(trace: Trace | ImportedTrace, audit: Audit, out: str | Path) -> Path:
    """Writes the page to `out`, whole or not at all; its path. Raises InputError when it cannot be written."""
    return write_page(render(trace, audit), out)


def write_page(content: str, out: str | Path) -> Path:
    """Writes a page to `out`, whole or not at all; its path. Raises InputError when it cannot be written."""
    path = Path(os.path.abspath(out))
    if not path.name or path.is_dir():
        raise InputError(f"report {str(out)!r} is a directory; name a file in it")
    write_whole(path, content.encode(), f"report {str(out)!r}", InputError)
    return path


def render(trace: Trace | ImportedTrace, audit: Audit) -> str:
    """The page as text."""
    document = audit.to_json_in_full()
    common = {
        "audit": document,
        "audit_json": _script_safe(document),
        "assumptions": audit.assumptions,
        "written": trace.run["written"],
        "packages": trace.run["packages"],
    }
    if isinstance(trace, ImportedTrace):
        return _render(
            "page.html.j2",
            _audit_figures(audit),
            title=Path(trace.run["log"]).name,
            description=f"Imported from {trace.run['log']}: {trace.run['rows_read']:,} rows read.",
            seed=None,
            outcomes=[],
            scenario_toml=None,
            **common,
        )
    return _render(
        "page.html.j2",
        [*_run_figures(trace), *_audit_figures(audit)],
        title=trace.scenario["name"],
        description=trace.scenario.get("description", ""),
        seed=trace.run["seed"],
        outcomes=_outcome_rows(trace),
        scenario_toml=tomli_w.dumps(trace.scenario),
        **common,
    )


def render_reproduction(title: str, note: str, rows: list[list[str]], results: list[dict[str, Any]]) -> str:
    """The page of reproduced runs as text: a table (heading first), plots, and `results` as JSON."""
    from fedray.report import figures

    chosen = [
        (
            "min-sep",
            "Min-sep",
            "On the line, simulated and published agree.",
            figures.observed_beside_published(results, "min_sep"),
        ),
        (
            "rho",
            "rho of tree aggregation",
            "For the (min-sep, max participations) seen.",
            figures.observed_beside_published(results, "rho"),
        ),
    ]
    return _render("reproduction.html.j2", chosen, title=title, note=note, rows=rows, results_json=_script_safe(results))


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page: heading first."""

    title: str
    rows: list[list[str]]
    note: str = ""
    row_styles: Sequence[str] = ()
    """`marked` (bold) or nothing, for each row after the heading."""


def render_study(
    title: str,
    note: str,
    figures: Sequence[Shown],
    tables: Sequence[PageTable],
    results: Any,
    assumptions: Sequence[str] = (),
) -> str:
    """The page of a study: figures, tables, what they rest on, and `results` as JSON."""
    from fedray.report import figures as old

    def drawn(figure: Shown) -> Any:
        if isinstance(figure, Figure):
            return plotly_figure(figure)
        points = [(x, y, z) for (x, y), z in figure.values.items()]
        return json.loads(old.plane(points, figure.x.title, figure.y.title, figure.z.title).to_json())

    chosen = [(each.name, each.title, each.note, drawn(each)) for each in figures]
    given = {"note": note, "tables": tables, "assumptions": assumptions, "results_json": _script_safe(results)}
    return _render("stress.html.j2", chosen, title=title, **given)


def render_lines(
    title: str,
    note: str,
    axes: tuple[str, str],
    lines: dict[str, list[tuple[float, float]]],
    marks: list[tuple[float, str]],
    tables: list[PageTable],
    results: dict[str, Any],
    assumptions: Sequence[str] = (),
    plane: tuple[str, dict[str, list[tuple[float, float, float]]]] | None = None,
) -> str:
    """A page of lines over one axis, with vertical marks; or, if given, of planes (their vertical axis, points by name)."""
    from fedray.report import figures

    if plane is not None:
        chosen = [
            (f"plane-{place}", name, f"{axes[1]}, by colour.", figures.plane(points, axes[0], plane[0], axes[1]))
            for place, (name, points) in enumerate(plane[1].items())
        ]
    else:
        chosen = [
            (
                "lines",
                f"{axes[1]} over {axes[0]}",
                "A line for each case; a click on its name hides it.",
                figures.lines(lines, marks, *axes),
            )
        ]
    return _render(
        "stress.html.j2",
        chosen,
        title=title,
        note=note,
        tables=tables,
        assumptions=assumptions,
        results_json=_script_safe(results),
    )


def _render(template: str, figures: list[tuple[str, str, str, Any]], **values: Any) -> str:
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedray.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(template).render(
        figures=[{"id": name, "title": title, "note": note} for name, title, note, _ in figures],
        figures_json=_script_safe(
            {name: figure if isinstance(figure, dict) else json.loads(figure.to_json()) for name, _, _, figure in figures}
        ),
        plotly_js=get_plotlyjs(),
        **values,
    )


def _run_figures(trace: Trace) -> list[tuple[str, str, str, Any]]:
    from fedray.report import figures

    chosen = [
        (
            "eligible",
            "Eligible devices",
            "Charging, idle, on wifi: who could take part, over the run.",
            figures.eligible_devices(trace),
        ),
        ("diurnal", "Eligible devices by hour", "The same by hour of the day.", figures.eligible_by_hour(trace)),
        ("durations", "Time per round", "From one commit to the next.", figures.round_durations(trace)),
        ("accuracy", "Model", "On held-out text of devices that are in no population.", figures.accuracy(trace)),
    ]
    return [each for each in chosen if each[3] is not None]


def _audit_figures(audit: Audit) -> list[tuple[str, str, str, Any]]:
    from fedray.report import figures

    return [
        (
            "participations",
            "Participations per device",
            "Of the devices that took part.",
            figures.participations_per_device(audit),
        ),
        ("gaps", "Gaps between participations", "The least is the min-sep.", figures.gaps(audit)),
        ("privacy", "Privacy over rounds", "Exact for the trace up to that round.", figures.privacy(audit)),
        ("devices", "What the devices got", "Share of the devices whose rho is no more than this.", figures.device_privacy(audit)),
    ]


def _outcome_rows(trace: Trace) -> list[tuple[str, int, str]]:
    counts = trace.outcome_counts()
    total = max(1, sum(counts.values()))
    return [(name, count, f"{100 * count / total:.1f} %") for name, count in counts.items()]


def _script_safe(document: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(document, allow_nan=False).replace("<", "\\u003c")
