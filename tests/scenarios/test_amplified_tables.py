"""Multipliers and bands of the banded paper: what counts as agreement, and a part of the tables."""

import dataclasses

import pytest

from fedray.scenarios import amplified


@pytest.mark.slow
def test_a_printed_number_that_is_nearly_the_best_shows_its_cost() -> None:
    """64 bands of a Toeplitz matrix need a little less noise than the printed 128."""
    found = amplified._optimal(4.0, 1, 128)
    assert (found.best, str(found)) == (64, "64 (128: +0.11 %)")
    assert amplified._optimal(16.0, 256, 4).cost == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "table"),
    [("128 128", 0), ("128", 1)],
    ids=["a number of bands that is far off", "a multiplier"],
)
def test_a_figure_that_contradicts_the_paper_shows_in_the_verdict(
    monkeypatch, column: str, table: int
) -> None:
    first, *others = amplified.TABLES
    wrong = (*first[:4], first[4].replace("0.65294", "0.65297"))
    monkeypatch.setattr(amplified, "TABLES", ((first, wrong)[table], others[-1]))
    monkeypatch.setattr(amplified, "G1", ((4.0, column),))
    (found,) = amplified.run()
    assert not found.agrees
    assert found.verdict.startswith(f"{10 - table} of 10 multipliers agree.")


def test_an_exact_multiplier_is_rounded_or_cut_off_and_a_sampled_one_is_on_the_safe_side() -> None:
    exact = amplified.Multiplier("4", "DP-SGD", None, 8.0, "0.65294", 0.6529354)
    assert exact.agrees
    assert dataclasses.replace(exact, printed="0.65293").agrees
    assert not dataclasses.replace(exact, printed="0.65295").agrees
    sampled = dataclasses.replace(exact, bands=1, printed="0.20567", obtained=0.2057)
    assert sampled.agrees
    assert not dataclasses.replace(sampled, obtained=0.20566).agrees
    assert not dataclasses.replace(sampled, obtained=0.2058).agrees
