"""One self-contained HTML page for a trace and its audit: no network, light and dark, phone and
print."""

import base64
import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from fedray.audit.audit import Audit
from fedray.audit.statement import privacy_statement
from fedray.base.atomic import write_whole
from fedray.base.errors import InputError
from fedray.base.rounding import counted, given
from fedray.report import tables
from fedray.report.figure import Figure, Plane, Shown
from fedray.report.files import figure_csv, plane_svg
from fedray.report.plotly_json import plotly_figure
from fedray.report.tables import PageTable
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

PLOTLY_FILE = "plotly-basic.min.js"


def write_report(trace: Trace | ImportedTrace, audit: Audit, out: str | Path) -> Path:
    """Writes the page of an audit, whole or not at all.

    Args:
        trace: what was audited.
        audit: of that trace.
        out: the file.

    Returns:
        The file's path.

    Raises:
        InputError: if it cannot be written.
    """
    return write_page(render(trace, audit), out)


def write_page(content: str, out: str | Path) -> Path:
    """Writes a page, whole or not at all.

    Args:
        content: HTML.
        out: the file.

    Returns:
        The file's absolute path.

    Raises:
        InputError: it cannot be written.
    """
    # An absolute path can be opened from anywhere once it is printed.
    path = Path(os.path.abspath(out))
    if not path.name or path.is_dir():
        raise InputError(f"report {str(out)!r} is a directory; name a file in it")
    write_whole(path, content.encode(), f"report {str(out)!r}", InputError)
    return path


def render(trace: Trace | ImportedTrace, audit: Audit) -> str:
    """The page of a `trace` and its `audit` as text: one HTML document that loads nothing."""
    from fedray.report.figures import figures_of

    figures = figures_of(trace, audit)
    statement = _statement(trace, audit)
    return render_audit(audit.to_json_in_full(), figures, _about(trace), statement)


@dataclass(frozen=True, slots=True)
class About:
    """What a page says of its trace, beside the audit."""

    title: str
    """Heading of the page."""
    description: str
    """What was run or imported, in words."""
    seed: int | None
    """The run's seed; None for a log."""
    written: str
    """When the trace was written, ISO 8601."""
    packages: dict[str, str]
    """Versions of packages that made the trace, by name."""
    run: dict[str, Any]
    """What the mechanism was run with, by name; empty for a log."""
    outcomes: dict[str, int]
    """Selected devices by what became of them; empty for a log."""
    scenario_toml: str | None
    """The scenario as TOML; None for a log."""
    integrity: str
    """What protects the trace against damage, a sentence."""
    divergence: str = ""
    """That the training diverged, in sentences; empty if it did not."""
    noise_multiplier: float | None = None
    """The noise multiplier of the run; None for a log."""


def _about(trace: Trace | ImportedTrace) -> About:
    written = trace.run["written"]
    packages = trace.run["packages"]
    if isinstance(trace, ImportedTrace):
        log = trace.run["log"]
        description = f"Imported from {log}: {trace.run['rows_read']:,} rows read."
        return About(
            Path(log).name, description, None, written, packages, {}, {}, None, trace.integrity
        )
    scenario = trace.scenario
    # A scenario that names no policies has the timer alone.
    policies = scenario["participation"].get("policies", [{"kind": "timer"}])
    kinds = [policy["kind"] for policy in policies]
    run = {
        "clip norm": scenario["privacy"]["clip_norm"],
        "encoding": scenario["privacy"].get("encoding", {}).get("kind", "fixed_point"),
        "report goal (devices in a round)": scenario["rounds"]["report_goal"],
        "policies": ", ".join(kinds) or "none",
        # A timer that no policy reads has no effect, so it is shown as 0.
        "timer (hours)": scenario["participation"]["timer_hours"] if "timer" in kinds else 0,
        "round separation": scenario["participation"]["round_separation"],
    }
    description = scenario.get("description", "")
    toml = tomli_w.dumps(scenario)
    seed = trace.run["seed"]
    outcomes = trace.outcome_counts()
    return About(
        scenario["name"],
        description,
        seed,
        written,
        packages,
        run,
        outcomes,
        toml,
        trace.integrity,
        trace.trained.divergence if trace.trained is not None else "",
        scenario["privacy"]["noise_multiplier"],
    )


def _statement(trace: Trace | ImportedTrace, audit: Audit) -> list[dict[str, str]]:
    """The lines; none where there is no noise, or where the claim that they would state does not
    hold."""
    has_noise = bool(audit.mechanisms) and audit.mechanisms[0].noise_multiplier is not None
    if not has_noise or not audit.claim_holds:
        return []
    return privacy_statement(trace, audit).to_json()["lines"]


def render_audit(
    audit: dict[str, Any],
    figures: Sequence[Shown],
    about: About,
    statement: Sequence[dict[str, str]] = (),
) -> str:
    """Makes the page of an audit.

    Args:
        audit: as `Audit.to_json_in_full` gives it.
        figures: what is drawn, in order.
        about: what the page says of the trace beside the audit.
        statement: lines of the privacy statement; empty for none.

    Returns:
        The page as text.
    """
    # The mechanism of the run, or the one that is claimed, comes first.
    used = audit["mechanisms"][0] if audit["mechanisms"] else None
    shown = []
    if statement:
        shown.append(tables.statement_table(statement))
    if audit["utility"]:
        shown.append(tables.utility_table(audit))
    if used is not None:
        shown.append(tables.guarantees_table(audit))
    if audit["device_privacy"] is not None:
        shown.append(tables.devices_table(audit["device_privacy"]))
    if audit["frontier"] is not None:
        shown.append(tables.frontier_table(audit["frontier"]))
    if audit["classes"]:
        shown.append(tables.classes_table(audit["classes"]))
    mechanism = None
    mechanism_note = ""
    if used is not None:
        mechanism = _mechanism_table(used, about)
        mechanism_note = _mechanism_note(used, about, bool(audit["findings"]))
    return _render(
        "page.html.j2",
        figures,
        title=about.title,
        description=about.description,
        divergence=about.divergence,
        seed=about.seed,
        written=about.written,
        packages=about.packages,
        audit=audit,
        # The page carries the whole document, so that its figures can be read by programs.
        audit_json=_script_safe(audit),
        findings=tables.findings_table(audit["findings"]),
        evidence=tables.evidence_table(audit["findings"]),
        mechanism=mechanism,
        mechanism_note=mechanism_note,
        tables=shown,
        outcomes=tables.outcomes_table(about.outcomes) if about.outcomes else None,
        scenario_toml=about.scenario_toml,
        rests_on=[*audit["assumptions"], about.integrity],
    )


def _mechanism_table(used: dict[str, Any], about: About) -> PageTable:
    noise = used["noise_multiplier"]
    added = {"noise multiplier": "not known" if noise is None else noise}
    return tables.parameters_table(
        {"kind": used["name"], **used["parameters"], **added, **about.run}
    )


def _mechanism_note(used: dict[str, Any], about: About, is_claimed: bool) -> str:
    source = "Claimed" if is_claimed else "Given to the audit"
    if about.scenario_toml is None:
        return f"{source}; a log does not say how noise was added."
    has_own_noise = used["noise_multiplier"] == about.noise_multiplier
    if used["is_own"] and has_own_noise and not is_claimed:
        return "The mechanism of the run."
    return f"{source}; what was run is in the scenario below."


def render_study(
    title: str,
    note: str,
    figures: Sequence[Shown],
    tables: Sequence[PageTable],
    results: Any,
    assumptions: Sequence[str] = (),
    scenario_toml: str | None = None,
) -> str:
    """Makes a page of figures and tables.

    Args:
        title: its heading.
        note: what the page shows.
        figures: what is drawn, in order.
        tables: in order.
        results: is in the page as JSON.
        assumptions: what the figures rest on, in sentences.
        scenario_toml: what was run, as TOML; None where the page is of no single run.

    Returns:
        The page as text.
    """
    values = {
        "note": note,
        "tables": tables,
        "assumptions": assumptions,
        "scenario_toml": scenario_toml,
        "results_json": _script_safe(results),
    }
    return _render("study.html.j2", figures, title=title, **values)


def render_watch(listing: dict[str, Any], nonce: str) -> str:
    """Makes the page that follows the runs under a directory; it asks for /state.json.

    Args:
        listing: as `fedray.report.text.runs.shown_listing` gives it.
        nonce: of the page's scripts, which its policy names.

    Returns:
        The page as text.
    """
    return (
        _environment()
        .get_template("watch.html.j2")
        .render(directory=listing["directory"], listing_json=_script_safe(listing), nonce=nonce)
    )


def render_fragment(line: str, tables: Sequence[PageTable]) -> str:
    """Makes a part of a page, as a notebook shows it: it loads nothing, and has no script.

    Args:
        line: what stands first.
        tables: in order.

    Returns:
        One element of HTML as text.
    """
    return _environment().get_template("fragment.html.j2").render(line=line, tables=tables)


def _environment() -> jinja2.Environment:
    # Names of users' files and scenarios stand in the page, so everything is escaped; a name that
    # is not defined is a bug, and not an empty text.
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fedray.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, figures: Sequence[Shown], **values: Any) -> str:
    environment = _environment()
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["given"] = given
    # Templates round figures by the functions of the tables, so that both show the same digits.
    used_by_templates = ("epsilon", "fine", "limit_cells", "style_of")
    environment.globals |= {name: getattr(tables, name) for name in used_by_templates}
    environment.globals["counted"] = counted
    # NaN is no JSON, and a browser would refuse the whole page's data for one of them.
    by_name = {figure.name: _for_script(figure) for figure in figures}
    figures_json = json.dumps(by_name, allow_nan=False)
    return environment.get_template(template).render(
        figures=[_for_template(figure) for figure in figures],
        packed_figures=_packed(figures_json.encode()),
        packed_plotly=_packed_plotly(),
        **values,
    )


def _for_template(figure: Shown) -> dict[str, Any]:
    plane = figure if isinstance(figure, Plane) else None
    rows = tables.plane_rows(plane) if plane is not None else None
    return {
        "name": figure.name,
        "title": figure.title,
        "note": figure.note,
        "plane": plane,
        "plane_rows": rows,
    }


def _for_script(figure: Shown) -> dict[str, Any]:
    drawn = plotly_figure(figure) if isinstance(figure, Figure) else {"svg": plane_svg(figure)}
    return {"title": figure.title, "csv": figure_csv(figure), **drawn}


@cache
def _packed_plotly() -> str:
    # The library is most of a page and the same in all pages, so it is packed once.
    file = resources.files("fedray.report") / "vendor" / PLOTLY_FILE
    return _packed(file.read_bytes())


def _packed(content: bytes) -> str:
    """As the page's script unpacks it: gzip in base64, less than half of the size."""
    # Without a time, so that the same page has the same bytes.
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _script_safe(document: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    # "</script" within a string would; the escape is the same string to JSON.
    return json.dumps(document, allow_nan=False).replace("<", "\\u003c")
