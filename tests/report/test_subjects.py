"""Subjects of figures: captions are made from them, and rows of different subjects never stand
under one caption without a column that tells them apart."""

import csv
import io
from dataclasses import fields, replace

from fedray.base.document import json_of
from fedray.report.subject import AS_WRITTEN, FACETS, UNKNOWN, Subject, shared_subject
from fedray.report.table import Table

BASE = Subject("paced (160,000 devices)", AS_WRITTEN, "5 runs")
LARGER = replace(BASE, condition="if population.devices=640000")
CELLS = {"estimate": lambda row: str(row[0]), "condition": lambda row: row[1].condition}


def table_of(*rows: tuple[int, Subject], cells=CELLS) -> Table:
    return Table.of("Estimates", rows, cells, subject=lambda row: row[1])


def test_rows_of_two_conditions_are_mixed_without_a_column_that_says_so():
    rows = (100, BASE), (100, LARGER)
    assert table_of(*rows).mixed == ()
    pooled = table_of(*rows, cells={"estimate": CELLS["estimate"], "k": lambda row: "1"})
    assert pooled.mixed == ("condition",)
    assert table_of(*rows).varied().mixed == ()
    # A page has room for more columns than a terminal, and both are checked.
    assert replace(table_of(*rows), details=("condition",)).brief().mixed == ("condition",)


def test_a_condition_of_two_keys_is_said_by_a_column_for_each():
    rows = [(12, 60), (12, 120), (24, 60)]
    cells = {"timer": lambda row: str(row[0]), "goal": lambda row: str(row[1])}

    def made(**columns) -> Table:
        def subject(row: tuple[int, int]) -> Subject:
            return replace(BASE, condition=f"if timer={row[0]} and goal={row[1]}")

        return Table.of("Cells", rows, columns, subject=subject)

    assert made(**cells).mixed == ()
    assert made(timer=cells["timer"]).mixed == ("condition",)
    # A value in another key's column, or a longer value, does not say it.
    assert made(timer=cells["timer"], rounds=cells["goal"]).mixed == ("condition",)
    assert made(timer=cells["timer"], goal=lambda row: f"{row[1]}0").mixed == ("condition",)


def test_a_facet_that_only_one_row_says_is_mixed_too():
    assert table_of((1, BASE), (2, replace(BASE, condition=""))).mixed == ("condition",)


def test_caption_has_what_all_rows_share_and_each_row_of_csv_has_all():
    table = table_of((100, BASE), (100, LARGER))
    assert table.caption == "Estimates, of paced (160,000 devices), in 5 runs"
    assert table.text(200).splitlines()[0] == table.caption
    assert rf"\caption{{{table.caption}}}" in table.rendered("tex")
    assert table.rendered("md").startswith(f"{table.caption}\n\n| ")
    rows = list(csv.DictReader(io.StringIO(table.rendered("csv"))))
    assert [each["of"] for each in rows] == [str(BASE), str(LARGER)]


def test_list_of_names_and_values_has_a_line_for_its_subject():
    facts = replace(Table.facts("", [("z", "2")]), subject=BASE)
    assert [*csv.reader(facts.rendered("csv").splitlines())] == [["z", "2"], ["of", str(BASE)]]


def test_result_fills_in_what_a_table_does_not_say_and_nothing_in_which_its_rows_differ():
    whole = replace(BASE, sample="50 devices")
    own = replace(Table.facts("", [("z", "2")]), subject=Subject(runs="one run"))
    assert own.under(whole).subject == replace(whole, runs="one run")
    mixed = table_of((1, BASE), (2, LARGER))
    assert mixed.under(whole).subject == replace(whole, condition="")


def test_a_caption_has_every_facet_and_json_only_the_known_settings():
    assert {*FACETS} == {each.name for each in fields(Subject)}
    whole = replace(BASE, setting="400 rounds", loss="RmsLoss", sample="50 devices")
    said = '"as written", 400 rounds, in 5 runs, for RmsLoss, on 50 devices'
    assert str(whole) == f"of paced (160,000 devices), {said}"
    assert "setting" not in json_of(BASE)
    assert json_of(whole)["loss"] == "RmsLoss"


def test_shared_subject_keeps_the_equal_facets():
    assert shared_subject([BASE, LARGER]) == replace(BASE, condition="")
    assert shared_subject([]) == UNKNOWN
    assert BASE.beyond(shared_subject([BASE, LARGER])) == Subject(condition=AS_WRITTEN)
