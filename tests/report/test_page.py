"""The page: self-contained, its numbers those of the audit, rounded to the safe side, with nothing to be misread."""

import base64
import dataclasses
import gzip
import html
import json
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.base.errors import InputError
from fedray.imports.importer import import_log
from fedray.mechanisms.registry import Tree
from fedray.report.page import audit_page, render_study, write_report
from fedray.report.table import Table
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.trace.imported import LeftOut
from fedray.trace.reader import Trace


def words(page: str) -> str:
    """The page's text without scripts and tags, spaces joined."""
    body = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


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


def test_three_guarantees_stand_in_order_and_only_one_may_be_rested_on(
    trained_page: str, trained_audit
) -> None:
    tiles = re.findall(
        r'<article class="guarantee (\w+)( may)?">(.*?)</article>', trained_page, flags=re.DOTALL
    )
    assert [(name, bool(may)) for name, may, _ in tiles] == [
        ("observed", False),
        ("enforced", True),
        ("claimed", False),
    ]
    seen, enforced, claimed = (words(content) for *_, content in tiles)
    assert f"A statement about {trained_audit.mechanisms[0].observed.scope}." in seen
    assert "Not for publication as a DP guarantee." in seen
    assert "It may be published as a DP guarantee." in enforced
    assert "not known" in claimed
    assert "Nothing is claimed." in claimed


def test_an_epsilon_that_protects_nobody_is_not_green(small, tmp_path: Path) -> None:
    scenario = small("privacy.noise_multiplier=0.1", "participation.timer_hours=1.0")
    audit = audit_trace(simulate(scenario, Placement(1, "in-process"), tmp_path / "t"))
    assert audit.supported_epsilon is not None
    assert audit.supported_epsilon > 20
    page = audit_page(audit)
    assert 'class="guarantee enforced"' in page
    assert 'class="verdict holds"' not in page
    assert "It may be published as a DP guarantee." not in page
    assert "It may be published, but protects nobody in practice." in page


def test_privacy_is_rounded_to_the_safe_side_in_tiles_and_tables(
    trained_page: str, trained_audit
) -> None:
    shown = {Decimal(each) for each in re.findall(r"\d+\.\d+", words(trained_page))}
    used, privacy = trained_audit.mechanisms[0], trained_audit.device_privacy
    losses = [privacy.mean_rho, *(each.rho for each in privacy.quantiles)]
    for each in (used.observed, used.observed_limits, used.enforced):
        losses += [each.rho, each.sensitivity.value]
    losses += [each.rms_prefix_error for each in trained_audit.utility]
    for loss in map(Decimal, losses):
        assert loss.quantize(Decimal("1e-6"), ROUND_CEILING) in shown
        assert loss.quantize(Decimal("1e-6"), ROUND_FLOOR) - loss == 0 or (
            loss.quantize(Decimal("1e-6"), ROUND_FLOOR) not in shown
        )


def test_the_figures_of_a_real_page_are_never_below_the_audit_s(
    trained_page: str, trained_audit
) -> None:
    text = words(trained_page)
    for each in trained_audit.to_json()["guarantees"]:
        if each["is_known"]:
            shown = [Decimal(found) for found in re.findall(r"ε = ([\d.]+)", text)]
            assert any(0 <= value - Decimal(each["epsilon"]) < Decimal("1e-4") for value in shown)


def test_no_min_sep_is_said_where_nobody_takes_part_twice(trace_of) -> None:
    trace = trace_of([[0], [1], [2]], 3)
    page = audit_page(audit_trace(trace))
    assert "none (k = 1)" in words(page)
    assert "nobody took part twice" in words(page)


def test_the_verdict_on_a_claim_comes_first_and_its_findings_are_coloured_by_theirs(
    trace_of,
) -> None:
    trace = trace_of([[0, 2], [1, 4], [3]], 5)
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, min_sep=3, epsilon=100.0)
    page = audit_page(audit_trace(trace, claim=claim))
    places = [
        page.index(each)
        for each in (
            '<div class="verdict broken">',
            "Epsilon that may be published",
            'id="gaps"',
            ">min_sep</td>",
            '<article class="guarantee observed',
        )
    ]
    assert places == sorted(places)
    row = re.search(r'<tr role="row" class="broken">(.*?)</tr>', page)
    assert row is not None
    assert re.findall(r'data-label="([^"]+)"', row.group(1))[:2] == ["statement", "verdict"]
    assert "2 rounds apart" in page


def test_left_out_rows_stand_above_every_figure_and_assumptions_below(
    trained, trained_audit
) -> None:
    left_out = (LeftOut("without a round", 1234, "x"),)
    page = audit_page(dataclasses.replace(trained_audit, left_out=left_out))
    assert (
        page.index("1,234 rows without a round")
        < page.index('<article class="guarantee')
        < page.index("What these figures assume")
    )


def test_a_statement_has_its_lines_with_their_evidence(trained_page: str) -> None:
    assert "Privacy statement" in words(trained_page)
    assert re.search(r'data-label="evidence"[^>]*>how the trace is keyed', trained_page)


def test_the_mechanism_is_shown_with_its_parameters_and_whose_it_is(
    trained, trained_page: str, trained_audit
) -> None:
    for value in trained_audit.mechanisms[0].strategy.parameters.values():
        for each in value if isinstance(value, list) else []:
            assert repr(each) in words(trained_page)
    assert "(of the run)" in words(trained_page)
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, rho=1.0)
    claimed = words(audit_page(audit_trace(trained, claim=claim)))
    # No figure of a run is at noise that it did not add.
    assert "(of the run)" in claimed
    assert "(claimed)" not in claimed
    assert "blt, not tree" in claimed


def test_a_trace_without_a_mechanism_still_shows_its_participation(trained, trained_audit) -> None:
    page = audit_page(dataclasses.replace(trained_audit, mechanisms=()))
    assert f"{trained_audit.participations:,}" in page
    assert "ε" not in words(page)


def test_headings_stand_like_their_columns() -> None:
    table = Table.headed(
        "t", [["name", "epsilon", "because"], ["a", "1.5", "two words"], ["b", "<= 2", "-"]]
    )
    assert table.kinds == ["text", "number", "text"]
    page = render_study("t", "", [], [table], {})
    assert '<th role="columnheader" scope="col" class="number">epsilon</th>' in page
    assert 'data-label="epsilon" class="number">1.5</td>' in page


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
        assert opened.integrity in audit_page(audit_trace(opened))


def test_a_page_without_training_says_nothing_of_a_model(small, tmp_path: Path, script) -> None:
    trace = simulate(small(), Placement(1, "in-process"), tmp_path / "t")
    page = audit_page(audit_trace(trace))
    assert not {"accuracy", "loss"} & set(script(page, "figure-data"))
    assert "really trained" not in page


def test_the_note_on_scaled_noise_is_there(trained_page: str) -> None:
    assert "64 of the 200 accepted devices really trained" in trained_page


def test_an_unwritable_page_is_refused_and_leaves_nothing(
    trained, trained_audit, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_report(trained_audit, tmp_path / "missing" / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_an_imported_log_with_a_broken_claim(tmp_path: Path, script) -> None:
    (tmp_path / "log.csv").write_text("dev,round\na<b>,0\na<b>,3\na<b>,3\nc,1\nc,2\n")
    trace = import_log(tmp_path / "log.csv", "dev", "round", 4, tmp_path / "t", repeats="once")
    claim = Claim.model_validate(
        {"mechanism": {"kind": "tree"}, "noise_multiplier": 2.0, "min_sep": 2, "rho": 0.1}
    )
    audit = audit_trace(trace, claim=claim, show_devices=True)
    page = audit_page(audit)
    assert script(page, "audit-data") == json.loads(json.dumps(audit.to_json_in_full()))
    assert list(script(page, "figure-data")) == [
        "gaps",
        "participations",
        "privacy",
        "devices",
    ]
    assert "The claim does not hold Min-sep is 1, not 2" in words(page)
    assert "For tree at noise multiplier 2. They" in words(page)
    for finding in audit.findings:
        assert f'data-label="verdict" class="text">{html.escape(finding.verdict)}</td>' in page
    assert ">c</td>" in page
    assert "a<b>" not in page
    assert "Scenario</summary>" not in page
    assert "Privacy statement" not in words(page)  # what is refuted is not for publication
