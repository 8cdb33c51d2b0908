"""The page: self-contained, its numbers those of the audit, rounded to the safe side, with nothing to be misread."""

import base64
import gzip
import html
import json
import re
from decimal import Decimal
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from fedray.audit.audit import audit_trace
from fedray.audit.claims import Claim
from fedray.base.errors import InputError
from fedray.imports.importer import import_log
from fedray.report.figure import Axis, Plane
from fedray.report.page import About, render, render_audit, render_study, write_report
from fedray.report.tables import PageTable
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace


def words(page: str) -> str:
    """The page's text without scripts and tags, spaces joined."""
    body = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def guarantee(name: str, **changes) -> dict:
    known = {
        "name": name, "scope": f"the scope of {name}", "is_known": True, "reason": f"the reason of {name}", "may_rest_on": name == "enforced",
        "rounds": 980, "min_sep": 215, "max_participations": 5, "sensitivity": 4.2000001, "is_exact": True, "theorem": "some theorem",
        "mu": 0.6000001, "rho": 0.18000007, "epsilon": 5.21002, "delta": 1e-10, "assumptions": ["the clocks are right"],
    }  # fmt: skip
    return {**known, **changes}


def unknown(name: str) -> dict:
    nothing = dict.fromkeys(
        (
            "rounds",
            "min_sep",
            "max_participations",
            "sensitivity",
            "is_exact",
            "theorem",
            "mu",
            "rho",
            "epsilon",
        )
    )
    return guarantee(name, is_known=False, may_rest_on=False, **nothing)


def document(**changes) -> dict:
    """An audit's document, as `Audit.to_json_in_full` gives it."""
    guarantees = [
        guarantee("observed"),
        guarantee("enforced", epsilon=6.40001, min_sep=140),
        unknown("claimed"),
    ]
    mechanism = {
        "name": "blt", "is_own": True, "parameters": {"theta": [0.9925526805789372], "omega": [0.15]}, "noise_multiplier": 7.0,
        "binding_device": "17", "binding_rounds": [3, 218], "observed_limits": guarantee("observed"), "guarantees": guarantees,
    }  # fmt: skip
    return {
        "digest": "d" * 64, "ended": "completed", "rounds": 980, "devices": 1234567, "participations": 6370000, "min_sep": 215,
        "max_participations": 5, "short_run_note": "", "classes": [], "left_out": [], "mechanisms": [mechanism], "guarantees": guarantees, "releases": [], "utility": [], "utility_rho": None,
        "utility_note": "Not comparable.", "verdicts": None, "findings": [], "claim_holds": True, "claim_sentence": "", "assumptions": ["A."],
        "device_privacy": None, "frontier": None, "ledger": [], **changes,
    }  # fmt: skip


ABOUT = About(
    "t",
    "",
    1,
    "now",
    {"fedray": "0"},
    {"clip norm": 1.0, "timer (hours)": 72.0},
    {},
    "x = 1",
    "Checked.",
)


def test_the_page_holds_the_audit_unrounded_and_shows_its_counts(
    trained_page: str, trained_audit, script
) -> None:
    audit = json.loads(json.dumps(trained_audit.to_json_in_full()))
    assert script(trained_page, "audit-data") == audit
    tiles = dict(re.findall(r'<b data-key="(\w+)">([^<]+)</b>', trained_page))
    assert set(tiles) == {"rounds", "devices", "participations", "min_sep", "max_participations"}
    assert all(
        text == ("none" if audit[key] is None else f"{audit[key]:,}") for key, text in tiles.items()
    )


def test_three_guarantees_stand_in_order_and_only_one_may_be_rested_on() -> None:
    page = render_audit(document(), [], ABOUT)
    tiles = re.findall(
        r'<article class="guarantee (\w+)( may)?">(.*?)</article>', page, flags=re.DOTALL
    )
    assert [(name, bool(may)) for name, may, _ in tiles] == [
        ("observed", False),
        ("enforced", True),
        ("claimed", False),
    ]
    seen, enforced, claimed = (words(content) for *_, content in tiles)
    assert "A statement about the scope of observed." in seen
    assert "No DP guarantee may rest on this." in seen
    assert "A DP guarantee may rest on this." in enforced
    assert "not known" in claimed
    assert "The reason of claimed." in claimed


def test_privacy_is_rounded_to_the_safe_side_in_tiles_tables_and_text() -> None:
    rows = [{"name": "blt", "sensitivity": 4.2000001, "rms_loss": 1.0000001, "max_loss": 2.0, "rho": 0.18000007, "noise_multiplier": 7.0000001,
             "rms_prefix_error": 9.0, "max_prefix_error": 10.0}]  # fmt: skip
    devices = {
        "quantiles": [{"share": 1.0, "sensitivity": 4.2000001, "rho": 0.18000007}],
        "mean_rho": 0.10000001,
        "is_exact": True,
    }
    text = words(
        render_audit(
            document(utility=rows, utility_rho=0.18000007, device_privacy=devices), [], ABOUT
        )
    )
    for shown in (
        "ε = 5.2101",
        "ε = 6.4001",
        "0.180001",
        "4.200001",
        "7.000001",
        "1.000001",
        "0.100001",
    ):
        assert shown in text
    for below in ("5.2100", "6.4000", "0.180000", "4.200000 "):
        assert below not in text


def test_the_figures_of_a_real_page_are_never_below_the_audit_s(
    trained_page: str, trained_audit
) -> None:
    text = words(trained_page)
    for each in trained_audit.to_json()["guarantees"]:
        if each["is_known"]:
            shown = [Decimal(found) for found in re.findall(r"ε = ([\d.]+)", text)]
            assert any(0 <= value - Decimal(each["epsilon"]) < Decimal("1e-4") for value in shown)


def test_no_min_sep_is_said_where_nobody_takes_part_twice() -> None:
    once = guarantee("observed", min_sep=None, max_participations=1)
    page = render_audit(
        document(
            min_sep=None,
            max_participations=1,
            guarantees=[once, unknown("enforced"), unknown("claimed")],
        ),
        [],
        ABOUT,
    )
    assert "none (k = 1)" in words(page)
    assert "nobody took part twice" in words(page)


def test_a_claim_s_two_verdicts_come_first_and_its_findings_begin_with_theirs() -> None:
    finding = {"statement": "min_sep", "verdict": "broken", "claimed": 215, "found": 140, "should_say": "min_sep = 140",
               "explanation": "two rounds are nearer", "broken_by": 1, "evidence_note": "", "evidence": [{"device": "7", "rounds": [1, 141], "shows": "140 apart"}]}  # fmt: skip
    verdicts = {"privacy": {"verdict": "holds", "text": "privacy: holds"},
                "participation": {"verdict": "broken", "text": "participation: min_sep does not hold"}}  # fmt: skip
    page = render_audit(
        document(verdicts=verdicts, findings=[finding], claim_holds=False, claim_sentence="both"),
        [],
        ABOUT,
    )
    places = [
        page.index(each)
        for each in (
            '<div class="verdicts">',
            '<article class="guarantee observed',
            ">min_sep</td>",
        )
    ]
    assert places == sorted(places)
    row = re.search(r'<tr role="row" class="broken">(.*?)</tr>', page)
    assert row is not None
    assert re.findall(r'data-label="([^"]+)"', row.group(1))[:2] == ["verdict", "statement"]
    assert "140 apart" in page


def test_left_out_rows_stand_above_every_figure_and_assumptions_below() -> None:
    page = render_audit(
        document(left_out=[{"reason": "without a round", "rows": 1234, "example": "x"}]), [], ABOUT
    )
    assert (
        page.index("1,234 rows without a round")
        < page.index('<article class="guarantee')
        < page.index("What these figures rest on")
    )


def test_a_statement_has_its_lines_with_their_evidence() -> None:
    lines = [
        {"what": "Unit of privacy", "says": "one device", "evidence": "how the trace is keyed"}
    ]
    page = render_audit(document(), [], ABOUT, lines)
    assert "Privacy statement" in words(page)
    assert re.search(r'data-label="evidence"[^>]*>how the trace is keyed</td>', page)


def test_the_mechanism_is_shown_with_its_parameters_and_whose_it_is(
    trained_page: str, trained_audit
) -> None:
    assert "theta 0.9925526805789372" in words(render_audit(document(), [], ABOUT))
    for value in trained_audit.to_json()["mechanisms"][0]["parameters"].values():
        for each in value if isinstance(value, list) else []:
            assert repr(each) in words(trained_page)
    assert "The mechanism of the run." in words(trained_page)
    finding = {
        "statement": "rho",
        "verdict": "holds",
        "claimed": 1.0,
        "found": 0.5,
        "should_say": "rho = 0.5",
        "explanation": "x",
        "evidence": [],
        "evidence_note": "",
    }
    claimed = words(render_audit(document(findings=[finding]), [], ABOUT))
    assert "The mechanism of the run." not in claimed
    assert "Claimed; what was run is in the scenario below." in claimed


def test_a_trace_without_a_mechanism_still_shows_its_participation() -> None:
    page = render_audit(document(mechanisms=[], guarantees=[]), [], ABOUT)
    assert "1,234,567" in page
    assert "ε" not in words(page)


def test_headings_stand_like_their_columns() -> None:
    table = PageTable(
        "t", [["name", "epsilon", "because"], ["a", "1.5", "two words"], ["b", "<= 2", "-"]]
    )
    assert table.kinds == ["text", "number", "text"]
    page = render_study("t", "", [], [table], {})
    assert '<th role="columnheader" scope="col" class="number">epsilon</th>' in page
    assert 'data-label="epsilon" class="number">1.5</td>' in page


def test_a_plane_is_a_table_whose_cells_hold_their_values() -> None:
    plane = Plane(
        "p",
        "<i>",
        "",
        Axis("x"),
        Axis("y"),
        Axis("epsilon", decimals=4),
        {(1.0, 2.0): 3.00001, (2.0, 2.0): 6.0, (1.0, 4.0): 9.0},
    )
    page = render_study("t", "", [plane], [], {})
    assert "&lt;i&gt;" in page
    cells = re.findall(r'<td style="--shade: (\d+)%" data-label="[12]">([^<]*)</td>', page)
    assert cells == [("50", "9.0000"), ("0", ""), ("0", "3.0001"), ("25", "6.0000")]


def test_the_page_asks_no_network_and_escapes_what_it_is_given(trained_page: str) -> None:
    class Links(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value or "" for name, value in attrs if name in ("src", "href")]

    parser = Links()
    parser.feed(trained_page)
    assert parser.found == ["data:,"]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', trained_page)
    assert policy is not None
    assert policy.group(1).startswith("default-src 'none';")
    assert not re.search(r"https?:|\*", policy.group(1))
    assert "<b>a & b</b>" not in trained_page
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in trained_page


def test_a_page_takes_less_than_a_megabyte_and_holds_plotly_as_it_was_reviewed(
    trained_page: str,
) -> None:
    assert len(trained_page.encode()) < 700_000  # of a run of 2,000 rounds 0.74 MB
    packed = re.search(r'<script type="text/plain" id="plotly">(.*?)</script>', trained_page)
    assert packed is not None
    vendored = resources.files("fedray.report") / "vendor" / "plotly-basic.min.js"
    assert gzip.decompress(base64.b64decode(packed.group(1))) == vendored.read_bytes()


def test_the_page_says_whether_digests_were_checked_as_the_terminal_does(trained) -> None:
    for verify, expected in (
        (True, "have their recorded digests"),
        (False, "Digests were not checked"),
    ):
        opened = Trace.open(trained.path, verify=verify)
        assert expected in opened.integrity
        assert opened.integrity in render(opened, audit_trace(opened))


def test_a_page_without_training_says_nothing_of_a_model(small, tmp_path: Path, script) -> None:
    trace = simulate(small(), Placement(1, "in-process"), tmp_path / "t")
    page = render(trace, audit_trace(trace))
    assert not {"accuracy", "loss"} & set(script(page, "figure-data"))
    assert "really trained" not in page


def test_the_note_on_scaled_noise_is_there(trained_page: str) -> None:
    assert "64 of the 200 accepted devices really trained" in trained_page


def test_an_unwritable_page_is_refused_and_leaves_nothing(
    trained, trained_audit, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_report(trained, trained_audit, tmp_path / "missing" / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_an_imported_log_with_a_broken_claim(tmp_path: Path, script) -> None:
    (tmp_path / "log.csv").write_text("dev,round\na<b>,0\na<b>,3\na<b>,3\nc,1\nc,2\n")
    trace = import_log(tmp_path / "log.csv", "dev", "round", 4, tmp_path / "t", repeats="once")
    claim = Claim.model_validate(
        {"mechanism": {"kind": "tree"}, "noise_multiplier": 2.0, "min_sep": 2, "rho": 0.1}
    )
    audit = audit_trace(trace, claim=claim, show_devices=True)
    page = render(trace, audit)
    assert script(page, "audit-data") == json.loads(json.dumps(audit.to_json_in_full()))
    assert list(script(page, "figure-data")) == [
        "participations",
        "gaps",
        "privacy",
        "rho",
        "devices",
    ]
    assert "participation: broken" in words(page)
    assert "For tree at noise multiplier 2. They" in words(page)
    for finding in audit.findings:
        assert f'class="text first">{html.escape(finding.verdict)}</td>' in page
    assert ">c</td>" in page
    assert "a<b>" not in page
    assert "Scenario</summary>" not in page
    assert "Privacy statement" not in words(page)  # what is refuted is not for publication
