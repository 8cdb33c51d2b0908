"""The terminal's tables: made of the documents that are printed as JSON, and of nothing else."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fedray.audit.audit import audit_trace
from fedray.audit.claims import Claim
from fedray.mechanisms.accounting.sampled import PoissonSampling
from fedray.mechanisms.figures import mechanism_figures
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.report.text import Paragraph, TextTable
from fedray.report.text.audits import audit_text, guarantee_rows
from fedray.report.text.mechanisms import figures_rows, mechanisms_text
from fedray.report.text.studies import canary_lines, fit_rows
from fedray.studies.canary import check_aggregator
from fedray.studies.fit import Fit, FittedRun


def printed(document: Mapping[str, Any]) -> Any:
    """A document as whoever reads the JSON has it."""
    return json.loads(json.dumps(document, allow_nan=False))


@pytest.mark.parametrize("has_claim", [False, True])
def test_an_audit_is_printed_from_its_document_alone(trace_of, has_claim: bool) -> None:
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, min_sep=4, rho=1.0)
    given = {"claim": claim} if has_claim else {"mechanism": Tree(), "noise_multiplier": 4.0}
    document = audit_trace(
        trace_of([[0, 4, 8], [1, 6], [2], [3], [5], [7]], 9), **given
    ).to_json_in_full()
    pieces = list(audit_text(document))
    assert list(audit_text(printed(document))) == pieces
    titles = [each.title for each in pieces if isinstance(each, TextTable)]
    assert ("The claim" in titles) == has_claim
    for mechanism in document["mechanisms"]:
        names = [name for name, *_ in guarantee_rows(mechanism, document["findings"])[1:]]
        assert names == ["observed", "observed limits", "enforced"] + ["claimed"] * has_claim


def test_every_table_has_rows_of_one_length(trace_of) -> None:
    document = audit_trace(trace_of([[0, 2, 4], [1, 3]], 5), 4.0, mechanism=Tree()).to_json()
    tables = [each for each in audit_text(document) if isinstance(each, TextTable)]
    assert len(tables) == 3
    assert all(len({len(row) for row in table.rows}) == 1 for table in tables)


def test_figures_are_printed_from_their_document_alone() -> None:
    with_noise = mechanism_figures(Tree(), MinSep(20, 5, 3), 2.0, 1e-6).to_json()
    without = mechanism_figures(Tree(), MinSep(20, 5, 3), None, 1e-6).to_json()
    assert figures_rows(printed(with_noise)) == figures_rows(with_noise)
    names = {name for name, _ in figures_rows(with_noise)}
    assert names - {name for name, _ in figures_rows(without)} == {
        "noise multiplier",
        "mu, rho",
        "epsilon at delta 1e-06",
    }


def test_what_a_mechanism_is_not_given_is_not_told() -> None:
    shown = dict(figures_rows(mechanism_figures(Tree(), MinSep(20, 5, 3), None, 1e-6).to_json()))
    assert "rounds" not in shown
    planned = Tree(completion=True, rounds=20)
    shown = dict(figures_rows(mechanism_figures(planned, MinSep(20, 5, 3), None, 1e-6).to_json()))
    assert shown["rounds"] == "20"


def test_several_mechanisms_are_a_row_each_and_sampled_ones_say_so() -> None:
    figures = [
        mechanism_figures(Identity(), MinSep(20, 5, 3), z, 1e-6, sampling).to_json()
        for z, sampling in ((None, None), (2.0, None), (2.0, PoissonSampling(20, 0.1)))
    ]
    headings = []
    for each in figures:
        table, note = mechanisms_text({"a": each, "b": each})
        assert isinstance(table, TextTable)
        assert isinstance(note, Paragraph)
        assert [row[0] for row in table.rows] == ["mechanism", "a", "b"]
        assert len({len(row) for row in table.rows}) == 1
        assert ("only if every device was Poisson-sampled" in note.text) == ("hypothetical" in each)
        headings.append(table.rows[0][4:])
    assert headings == [[], ["rho", "epsilon"], ["rho", "epsilon", "sampled epsilon"]]


def test_a_fit_shows_what_starved_and_where_nobody_came_twice() -> None:
    runs = (FittedRun(0.1, None, None), FittedRun(1.0, 140, 1), FittedRun(0.5, 60, 2))
    document = Fit("population.reach", 60, runs[-1], runs).to_json()
    assert fit_rows(printed(document)) == [
        ["population.reach", "min-sep (gap)", "max part."],
        ["0.1", "starved", "-"],
        ["1", "none (k = 1)", "1"],
        ["0.5", "60", "2"],
    ]


def test_canaries_are_printed_from_their_document_alone(small) -> None:
    document = check_aggregator(small(), (1, 5), 8, 256).to_json()
    lines = list(canary_lines(document))
    assert list(canary_lines(printed(document))) == lines
    assert lines[1] == "pattern    rounds 1, 5"
