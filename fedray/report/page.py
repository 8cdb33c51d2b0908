"""One self-contained HTML page for a trace and its audit: no network; for light and dark, telephone
and print."""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.basis import protects_nobody
from fedray.audit.findings import Verdict, headline
from fedray.audit.mechanism_audit import MechanismAudit
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.verdict import AuditVerdict
from fedray.base.atomic import write_output, write_whole
from fedray.base.errors import InputError
from fedray.base.escaped import printable_lines
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted, fine, given, simulated_time
from fedray.base.storage import local_path
from fedray.report import audits
from fedray.report.figure import Figure
from fedray.report.files import figure_csv
from fedray.report.plotly_json import plotly_figure
from fedray.report.subject import UNKNOWN, Subject, shared_subject
from fedray.report.table import Table
from fedray.report.traces import outcomes_table, parameters_table
from fedray.trace.reader import Trace

PLOTLY_FILE = "plotly-basic.min.js"

TELLING = {"min_sep": "gaps", "timer_hours": "gaps", "max_participations": "participations"}
"""Names of the figures that show a broken statement."""


def write_report(result: DrawnResult, out: str | Path, title: str = "") -> Path:
    """Writes the page of a result: one HTML file that loads nothing, complete or absent.

    Args:
        result: an audit, a trained run, or a result of a study; a trace gets the page of its audit
            with its own mechanism.
        out: path of the file, which is replaced if it exists; links are followed, and a device or
            a pipe is written to.
        title: heading in place of the page's own.

    Returns:
        Absolute path of the file.

    Raises:
        InputError: `out` cannot be written, such as a directory.
    """
    return write_page(result.page(), out, title)


def write_page(content: str, out: str | Path, title: str = "") -> Path:
    """Writes the HTML of a page, as `write_report` does."""
    # An absolute path can be opened from anywhere once it is printed.
    path = local_path(out).absolute()
    write_output(path, _titled(content, title), f"report {str(out)!r}")
    return path


def write_own_page(
    content: str, file: Path, title: str = "", beside: Mapping[str, str] | None = None
) -> Path:
    """Writes the HTML of a page under a name that no user gave, such as report.html of a trace: a
    link that a stranger put there is replaced, and not followed. Otherwise as `write_report`.

    Args:
        content: the page.
        file: path of the file.
        title: heading in place of the page's own.
        beside: pages in the same directory to link to: file by the text of the link.
    """
    path = file.absolute()
    pairs = (beside or {}).items()
    links = [f'<a href="{escape(name)}">{escape(text)}</a>' for text, name in pairs]
    if links:
        content = content.replace("</h1>", f'</h1>\n<p class="soft">{" ".join(links)}</p>', 1)
    write_whole(path, _titled(content, title), f"report {str(file)!r}", InputError)
    return path


def _titled(content: str, title: str) -> bytes:
    """Returns a page with another title, unless that is empty."""
    if title:
        # The head has the title first, and the heading is the first of the body.
        named = _without_controls(escape(title))
        content = re.sub(r"(?<=<title>)[^<]*|(?<=<h1>)[^<]*", lambda _: named, content, count=2)
    return content.encode()


def trace_page(trace: Trace) -> str:
    """Returns the page of a run's audit."""
    return audit_page(audit_trace(trace))


def audit_page(audit: Audit) -> str:
    """Returns the page of an audit and its trace."""
    trace = audit.trace
    # A log has no scenario, outcomes or seed.
    run = trace if isinstance(trace, Trace) else None
    # That of a training on the trace, if it was audited.
    scenario = audit.scenario.to_tables() if audit.scenario is not None else None
    return _render(
        "page.html.j2",
        _telling_first(audit),
        title=run.scenario["name"] if run is not None else Path(trace.run["log"]).name,
        trace=trace,
        run=run,
        audit=audit,
        # The mechanism of the run, or the claimed one, comes first.
        used=audit.mechanisms[0] if audit.mechanisms else None,
        # The page contains the whole document, so that programs can read its figures.
        audit_json=_script_safe(audit.to_json_in_full()),
        verdict_style=_style(audit),
        protects_nobody=protects_nobody,
        headline=(head := headline(audit.findings)),
        reasons=audit.verdict.removeprefix(head).lstrip(":. "),
        findings=audits.findings_table(audit),
        evidence=audits.evidence_table(audit.findings),
        observers=audits.observers_table(audit),
        mechanism=_mechanism_table(audit.mechanisms[0]) if audit.mechanisms else None,
        tables=_tables(audit),
        scenario_toml=tomli_w.dumps(scenario) if scenario is not None else None,
    )


def _style(audit: Audit) -> str:
    """Returns the style class of the verdict, which is not green where it protects nobody."""
    standing = AuditVerdict(audit).standing
    is_void = protects_nobody(audit.supported_epsilon)
    return "open" if standing == "holds" and is_void else standing


def _telling_first(audit: Audit) -> list[Figure]:
    """Returns the figures of an audit; with a claim, the one that shows the broken limit first, or
    else privacy over rounds."""
    broken = {each.statement for each in audit.findings if each.verdict is Verdict.BROKEN}
    first = next((name for limit, name in TELLING.items() if limit in broken), "privacy")
    figures = audit.figures()
    return sorted(figures, key=lambda each: each.name != first) if audit.findings else figures


def _tables(audit: Audit) -> list[Table]:
    tables = []
    # A claim that does not hold is not printed as a statement.
    if audit.claim_holds is not False:
        # The verdict says why there is no privacy to state.
        with suppress(InputError):
            tables += privacy_statement(audit).tables()
    if audit.utility:
        tables.append(audits.utility_table(audit))
    if audit.mechanisms or audit.no_guarantee:
        tables.append(audits.guarantees_table(audit))
    if audit.answers is not None:
        tables.append(audits.answers_table(audit.answers))
    tables += audits.persons_tables(audit)
    if audit.releases:
        tables.append(audits.releases_table(audit))
    if audit.device_privacy is not None:
        tables.append(audits.worst_devices_table(audit.worst_devices))
        tables.append(audits.devices_table(audit.device_privacy))
    if audit.frontier is not None:
        tables.append(audits.frontier_table(audit.frontier))
    if audit.classes:
        tables.append(audits.classes_table(audit.classes))
    if isinstance(audit.trace, Trace):
        tables.append(outcomes_table(audit.trace.outcome_counts()))
    return tables


def _mechanism_table(used: MechanismAudit) -> Table:
    noise = used.noise_multiplier
    parameters = {"kind": used.name, **used.strategy.parameters}
    parameters["noise multiplier"] = "not known" if noise is None else noise
    return parameters_table(parameters)


def render_study(
    title: str,
    note: str,
    figures: Sequence[Figure],
    tables: Sequence[Table],
    results: Any,
    assumptions: Sequence[str] = (),
    scenario_toml: str | None = None,
    tiles: Table | None = None,
    verdict: str = "",
    warnings: Sequence[str] = (),
    standing: str = "",
    answer: str = "",
    is_open: tuple[int, int] = (1, 1),
) -> str:
    """Returns a page of figures and tables as text.

    The first figure and the first table stand below the verdict, and the rest is folded.

    Args:
        title: heading of the page.
        note: subject of the page.
        figures: figures in order.
        tables: tables in order.
        results: results for the page's JSON.
        assumptions: assumptions behind the figures, in sentences.
        scenario_toml: scenario as TOML; None if the page is not about a single run.
        tiles: table of one row, whose cells are shown in large type above everything else.
        verdict: answer in a sentence or two; the note if it is empty.
        warnings: reasons to doubt the verdict, in sentences.
        standing: style class of the verdict and tiles: `broken` is red.
        answer: a few words in large type above the verdict.
        is_open: numbers of figures and of tables that are not folded.
    """
    of = shared_subject(each.subject for each in (*tables, *figures))
    values = {
        "verdict": verdict,
        "warnings": warnings,
        "standing": standing,
        "answer": answer,
        "is_open": is_open,
        "tiles": tiles,
        "note": note,
        "tables": [each.beyond(of) for each in tables],
        "assumptions": assumptions,
        "scenario_toml": scenario_toml,
        "results_json": _script_safe(results),
    }
    return _render("study.html.j2", figures, of, title=title, **values)


def render_fragment(line: str, tables: Sequence[Table]) -> str:
    """Returns a part of a page for a notebook, one element of HTML as text: it loads nothing, and
    has no script.

    Args:
        line: first line.
        tables: tables in order.
    """
    return _environment().get_template("fragment.html.j2").render(line=line, tables=tables)


def _environment() -> jinja2.Environment:
    # The page contains names of users' files and scenarios, so everything is escaped; an undefined
    # name is a bug, and must not become empty text.
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fedray.report", "."),
        autoescape=True,
        finalize=_without_controls,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _without_controls(value: Any) -> str:
    """Returns a value of a template as text, or as markup, without control characters."""
    text = value if isinstance(value, str) else str(value)
    return type(text)(printable_lines(text))


def _render(template: str, figures: Sequence[Figure], of: Subject = UNKNOWN, **values: Any) -> str:
    environment = _environment()
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["given"] = given
    # Templates round figures with the functions of the tables, so that both show the same digits.
    environment.globals |= {
        "counted": counted,
        "epsilon": audits.epsilon_text,
        "fine": fine,
        "limit_cells": audits.limit_cells,
        "rests_on": audits.rests_on,
        "simulated_time": simulated_time,
    }
    figures = [each.drawn() for each in figures]
    # NaN is not JSON: a browser would refuse all data of the page for one of them.
    plots = [panel for each in figures for panel in each.panels or (each,)]
    by_name = {each.name: _for_script(each) for each in plots}
    # A page saves the data of all panels together.
    whole = {each.name: {"csv": figure_csv(each)} for each in figures if each.panels}
    figures_json = json.dumps({**by_name, **whole}, allow_nan=False)
    return environment.get_template(template).render(
        of=of,
        # The page says the shared facets once, and each CSV has all.
        figures=[replace(each, subject=each.subject.beyond(of)) for each in figures],
        packed_figures=_packed(figures_json.encode()),
        packed_plotly=_packed_plotly(),
        **values,
    )


def _for_script(figure: Figure) -> dict[str, Any]:
    return {"title": figure.title, "csv": figure_csv(figure), **plotly_figure(figure)}


@cache
def _packed_plotly() -> str:
    # The library is most of a page and the same in all pages, so it is packed once.
    file = resources.files("fedray.report") / "vendor" / PLOTLY_FILE
    return _packed(file.read_bytes())


def _packed(content: bytes) -> str:
    """Returns gzip in base64, which the page's script unpacks; less than half of the size."""
    # Without a time, so that the same page has the same bytes.
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _script_safe(document: Any) -> str:
    """Returns JSON that cannot end the script element that contains it."""
    # "</script" within a string would end it; the escaped form is the same string in JSON.
    return json.dumps(document, allow_nan=False).replace("<", "\\u003c")
