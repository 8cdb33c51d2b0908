"""One self-contained HTML page for a trace and its audit: no network, light and dark, phone and print."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from fedray.audit.audit import Audit
from fedray.errors import InputError
from fedray.trace.reader import Trace


def write_report(trace: Trace, audit: Audit, out: str | Path) -> Path:
    """Writes the page to `out`, whole or not at all; its path. Raises InputError when it cannot be written."""
    return write_page(render(trace, audit), out)


def write_page(content: str, out: str | Path) -> Path:
    """Writes a page to `out`, whole or not at all; its path. Raises InputError when it cannot be written."""
    path = Path(out).resolve()
    if not path.name or path.is_dir():
        raise InputError(f"report {str(out)!r} is a directory; name a file in it")
    partial = path.with_name(f"{path.name[:200]}.{os.getpid()}.partial")
    try:
        partial.write_text(content, encoding="utf-8")
        partial.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise InputError(f"report {str(out)!r} cannot be written ({error}); name a file in a writable directory") from None
    return path


def render(trace: Trace, audit: Audit) -> str:
    """The page as text."""
    return _render(
        "page.html.j2",
        _figures(trace, audit),
        scenario=trace.scenario,
        run=trace.run,
        audit=audit.to_json(),
        audit_json=_script_safe(audit.to_json()),
        outcomes=_outcome_rows(trace),
        assumptions=audit.assumptions,
        scenario_toml=tomli_w.dumps(trace.scenario),
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


def _render(template: str, figures: list[tuple[str, str, str, Any]], **values: Any) -> str:
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedray.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(template).render(
        figures=[{"id": name, "title": title, "note": note} for name, title, note, _ in figures],
        figures_json=_script_safe({name: json.loads(figure.to_json()) for name, _, _, figure in figures}),
        plotly_js=get_plotlyjs(),
        **values,
    )


def _figures(trace: Trace, audit: Audit) -> list[tuple[str, str, str, Any]]:
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
        (
            "participations",
            "Participations per device",
            "Of the devices that took part.",
            figures.participations_per_device(audit),
        ),
        ("gaps", "Gaps between participations", "The least is the min-sep.", figures.gaps(audit)),
        ("accuracy", "Model", "On held-out text of devices that are in no population.", figures.accuracy(trace)),
        ("privacy", "Privacy over rounds", "Exact for the trace up to that round.", figures.privacy(audit)),
    ]
    return [each for each in chosen if each[3] is not None]


def _outcome_rows(trace: Trace) -> list[tuple[str, int, str]]:
    counts = trace.outcome_counts()
    total = max(1, sum(counts.values()))
    return [(name, count, f"{100 * count / total:.1f} %") for name, count in counts.items()]


def _script_safe(document: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(document, allow_nan=False).replace("<", "\\u003c")
