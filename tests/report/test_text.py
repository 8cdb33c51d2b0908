"""Tables: one value that the terminal, pages and notebooks show, and the tables of audits, mechanisms and fits."""

import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.mechanisms.accounting.sampled import PoissonSampling
from fedray.mechanisms.figures import mechanism_figures
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.report.audits import guarantees_table
from fedray.report.mechanisms import mechanisms_table
from fedray.report.page import audit_page, render_study
from fedray.report.table import Table
from fedray.report.terminal import audit_text

SMALL = Table.of(
    "Ages",
    [("a", 1.5), ("bb", 10.25)],
    {
        "name": lambda row: row[0],
        "age": lambda row: str(row[1]),
        "twice": lambda row: str(2 * row[1]),
    },
    "In years.",
    details=("twice",),
)


def test_numbers_stand_to_the_right_and_notes_below() -> None:
    assert SMALL.text(40).splitlines() == [
        "Ages",
        "  name    age  twice",
        "  ──────────────────",
        "  a       1.5    3.0",
        "  bb    10.25   20.5",
        "In years.",
    ]


def test_columns_that_do_not_fit_follow_in_a_block_with_the_first_column_and_no_cell_is_lost() -> (
    None
):
    assert SMALL.text(19).splitlines() == [
        "Ages",
        "  name    age",
        "  ───────────",
        "  a       1.5",
        "  bb    10.25",
        "",
        "  name  twice",
        "  ───────────",
        "  a       3.0",
        "  bb     20.5",
        "In years.",
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_a_wide_table_has_at_most_two_lines_a_row_and_fits_the_terminal(width: int) -> None:
    """Eleven columns, as of a stress test: numbers, short words, and a name."""
    heads = ["mechanism", "rounds", "estimate b, k", "truth b, k", "is", "epsilon", "rho"]
    heads += ["needed noise multiplier", "error", "difference", "RmsLoss"]
    row = ["banded-toeplitz", "2,350", "400, 6", "440, 6", "exact", "5.8400", "0.123456"]
    row += ["1.2345", "<= 9.1234", "+7.3 %", "6.2595"]
    rows = [[f"{row[0]}-{number}", *row[1:]] for number in range(12)]
    table = Table.headed("Spent", [heads, *rows], "A note.")
    lines = table.text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 2 * len(rows) + 12
    # Every cell stands whole in some line.
    shown = "\n".join(lines)
    assert all(shown.count(cell) >= 1 for each in rows for cell in each)


def test_a_cell_that_is_wider_than_a_terminal_is_not_broken() -> None:
    digest = "0123456789abcdef" * 4
    lines = Table.headed("", [("name", "digest", "k"), ("a", digest, "4")]).text(40).splitlines()
    assert any(line.split() == ["a", "4"] for line in lines)
    assert digest in "".join(line.split()[-1] for line in lines if line.strip())


def test_terminal_and_notebook_leave_out_details_that_pages_have() -> None:
    assert SMALL.brief().columns == ("name", "age")
    assert all(len(row) == 2 for row in SMALL.brief().rows)
    assert ">20.5<" in render_study("t", "", [], [SMALL], {})


def test_values_of_a_list_are_wrapped_beside_their_names() -> None:
    facts = Table.facts("", [("name", "a"), ("path", "words " * 8)])
    assert facts.text(40).splitlines() == [
        "  name  a",
        "  path  words words words words words",
        "        words words words",
    ]
    assert "<th" not in render_study("t", "", [], [facts], {})


def test_a_table_without_rows_has_its_headings() -> None:
    assert "name" in Table.of("", [], {"name": str, "age": str}).text(40)
    assert "t" in Table.facts("t", []).text(40)


@pytest.mark.parametrize("has_claim", [False, True])
def test_an_audit_has_the_same_rows_in_terminal_page_and_notebook(
    trace_of, has_claim: bool
) -> None:
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, min_sep=4, rho=1.0)
    given = {"claim": claim} if has_claim else {"mechanism": Tree(), "noise_multiplier": 4.0}
    trace = trace_of([[0, 4, 8], [1, 6], [2], [3], [5], [7]], 9)
    audit = audit_trace(trace, **given)
    pieces = [each for each in audit_text(audit) if isinstance(each, Table)]
    assert ("The claim" in [each.title for each in pieces]) == has_claim
    table = guarantees_table(audit)
    assert table in pieces
    names = [name for name, *_ in table.rows]
    assert names == ["observed", "observed limits", "enforced"] + ["claimed"] * has_claim
    for shown in (audit_page(audit), audit._repr_html_()):
        assert all(f">{cell}</td>" in shown for row in table.rows for cell in row)


def test_the_observed_sensitivity_is_shown_even_if_a_device_repeats_a_round(trace_of) -> None:
    """Then no (b, k) is proven; the sensitivity of the recorded rounds is exact all the same."""
    table = guarantees_table(audit_trace(trace_of([[0, 2], [1]], 3), 4.0, mechanism=Tree()))
    observed, limits, *_ = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert observed["figures are"] == "exact"
    assert float(observed["sensitivity"]) <= float(limits["sensitivity"])


def test_every_table_has_rows_of_one_length(trace_of) -> None:
    audit = audit_trace(trace_of([[0, 2, 4], [1, 3]], 5), 4.0, mechanism=Tree())
    tables = [each for each in audit_text(audit) if isinstance(each, Table)]
    assert len(tables) == 4
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_a_mechanism_without_noise_has_no_privacy_figures() -> None:
    with_noise = mechanism_figures(Tree(), MinSep(20, 5, 3), 2.0, 1e-6).tables()[0]
    without = mechanism_figures(Tree(), MinSep(20, 5, 3), None, 1e-6).tables()[0]
    assert {name for name, _ in with_noise.rows} - {name for name, _ in without.rows} == {
        "noise multiplier",
        "mu, rho",
        "epsilon at delta 1e-06",
    }


def test_a_parameter_that_a_mechanism_does_not_have_is_left_out() -> None:
    shown = dict(mechanism_figures(Tree(), MinSep(20, 5, 3), None, 1e-6).tables()[0].rows)
    assert "rounds" not in shown
    planned = Tree(completion=True, rounds=20)
    shown = dict(mechanism_figures(planned, MinSep(20, 5, 3), None, 1e-6).tables()[0].rows)
    assert shown["rounds"] == "20"


def test_several_mechanisms_are_a_row_each_and_sampled_ones_say_so() -> None:
    """Those of equal figures have them in a note."""
    for z, sampling in ((None, None), (2.0, None), (2.0, PoissonSampling(20, 0.1))):
        figures = mechanism_figures(Identity(), MinSep(20, 5, 3), z, 1e-6, sampling)
        table = mechanisms_table({"a": figures, "b": figures})
        assert [row[0] for row in table.rows] == ["a", "b"]
        is_said = any("only if every device was Poisson-sampled" in note for note in table.notes)
        assert is_said == (sampling is not None)
        assert table.columns == ("mechanism",)
        assert ("; epsilon " in table.notes[0]) == (z is not None)
        assert ("; sampled epsilon " in table.notes[0]) == (sampling is not None)


def test_a_column_of_equal_cells_is_a_note_and_the_first_column_stays() -> None:
    table = Table.headed("t", [("a", "b", "c", "d"), ("1", "2", "3", "-"), ("1", "2", "4", "-")])
    assert table.varied().columns == ("a", "c")
    assert table.varied().notes == ("In all rows: b 2.",)
    one = Table.headed("t", [("a", "b"), ("1", "2")])
    assert one.varied() == one


def test_a_wide_table_keeps_its_shape_by_wrapping_headings_and_prose() -> None:
    rows = [("blt", "1,234.5", "of the first kind, which is long", "0.1234 ± 0.0021")] * 2
    heads = ("setting", "bytes per upload", "why", "difference from the best")
    lines = Table.headed("", [heads, *rows]).text(66).splitlines()
    assert all(len(line) <= 66 for line in lines)
    assert "─" in lines[2]
    # Numbers, and cells that are short, are whole.
    assert sum("1,234.5" in line for line in lines) == 2
    assert sum("0.1234 ± 0.0021" in line for line in lines) == 2
    shown = " ".join(" ".join(lines).split())
    assert all(word in shown for word in " ".join([*heads, *rows[0]]).split())


def test_notes_on_method_are_for_pages() -> None:
    table = Table.of("t", [1], {"n": str}, "Read this.", method=["How."])
    assert "How." not in str(table)
    assert "Read this." in str(table)
    assert "How." in render_study("t", "", [], [table], {})
