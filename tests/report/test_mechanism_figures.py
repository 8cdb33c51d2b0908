"""Pictures of mechanisms: every number against a slow twin, and what the page and the files have."""

from pathlib import Path

import numpy as np
import pytest
import slow_twins as reference

from fedray.mechanisms.figures import Figures, Mechanisms, mechanism_figures
from fedray.mechanisms.files import read_strategy
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BISR, BandFHU, Identity, Tree
from fedray.mechanisms.workload import PREFIX, Workload
from fedray.report.figure import Figure
from fedray.report.mechanism_figures import mechanism_page

ROUNDS = 150
SETTING = MinSep(ROUNDS, 40, 3)
MOMENTUM = Workload(momentum=0.9)


def several(*strategies, workload: Workload = PREFIX) -> Mechanisms:
    found = {}
    for each in strategies:
        found[each.kind] = mechanism_figures(each, SETTING, None, 1e-10, workload=workload)
    return Mechanisms(found)


def by_name(found: Mechanisms | Figures) -> dict[str, Figure]:
    return {each.name: each for each in found.figures()}


@pytest.mark.parametrize("workload", [PREFIX, MOMENTUM], ids=str)
def test_the_noise_is_that_of_the_reference_and_falls_below_independent_noise(workload) -> None:
    blt = read_strategy("blt-100")
    figure = by_name(several(blt, Tree(), workload=workload))["noise"]
    assert isinstance(figure, Figure)
    names = ["blt", "tree", "independent noise"]
    assert [each.name for each in figure.series] == names
    for series, strategy in zip(figure.series, (blt, Tree(), Identity()), strict=True):
        scale = strategy.participation_sensitivity(SETTING).value
        slow = scale * np.sqrt(reference.error_variances(strategy, ROUNDS, workload))
        np.testing.assert_allclose(series.y, slow, rtol=1e-9)
        np.testing.assert_array_equal(series.x, np.arange(1, ROUNDS + 1))
    ours, _, alone = figure.series
    assert ours.y[-1] < alone.y[-1]


@pytest.mark.parametrize("rounds", [980, 5000])
def test_the_extremes_of_a_curve_are_those_of_the_table(rounds: int) -> None:
    """Also where a long curve is drawn by fewer points; the tree's is far from monotone."""
    setting, strategies = MinSep(rounds, 215, 4), (Tree(), BISR(bands=9), read_strategy("blt-400"))
    found = Mechanisms({e.kind: mechanism_figures(e, setting, None, 1e-10) for e in strategies})
    figure = by_name(found)["noise"]
    for shown in (figure, figure.drawn()):
        for series, each in zip(shown.series, found.by_name.values(), strict=False):
            assert series.y.max() == pytest.approx(each.loss.max_loss, rel=1e-12)
    for series, each in zip(figure.series, found.by_name.values(), strict=False):
        mean_square = float((series.y**2).mean())
        assert mean_square**0.5 == pytest.approx(each.loss.rms_loss, rel=1e-12)
    if rounds == 980:
        assert figure.series[0].y.max() == pytest.approx(15.786431, abs=1e-6)


class Unpublished(Identity):
    paper = ""


def test_a_mechanism_without_a_paper_is_named_without_one() -> None:
    for strategy, shown in (
        (Unpublished(), "identity"),
        (Identity(), f"identity ({Identity.paper})"),
    ):
        table, *_ = several(strategy).first.tables()
        assert ("kind", shown) in table.rows


def test_no_line_is_drawn_twice() -> None:
    figure = by_name(several(Identity()))["noise"]
    assert isinstance(figure, Figure)
    assert [each.name for each in figure.series] == ["identity"]


def test_the_coefficients_are_those_of_the_definition() -> None:
    strategies = (read_strategy("blt-100"), BISR(bands=9), BandFHU(bands=7))
    figures = by_name(several(*strategies, Tree(), Identity()))
    for name, sign in (("coefficients", 1.0), ("inverse", -1.0)):
        figure = figures[name]
        assert isinstance(figure, Figure)
        assert [each.name for each in figure.series] == ["blt", "bisr", "band-fhu"]
        for series, strategy in zip(figure.series, strategies, strict=True):
            C = strategy.definition(ROUNDS)
            slow = sign * (C if sign > 0 else np.linalg.inv(C))[:, 0]
            later = np.flatnonzero(slow[1:]) + 1
            at = series.x.astype(int)
            assert np.isin(at[np.abs(series.y) > 1e-12], later).all()
            np.testing.assert_allclose(series.y, slow[at], rtol=1e-7, atol=1e-12)
            assert np.abs(slow[1:]).max() == pytest.approx(np.abs(series.y).max(), rel=1e-7)


def test_the_page_has_all_of_it(fedray_command, tmp_path: Path) -> None:
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    setting = ("--rounds", "150", "--min-sep", "40", "--max-participations", "3")
    written = ("--page", str(page), "--figures", str(figures))
    code, out, _ = fedray_command("mechanism", "blt-400", "tree", *setting, *written)
    assert code == 0
    assert str(page) in out
    text = page.read_text()
    assert "Noise of the prefix sums at equal privacy" in text
    names = {"noise", "coefficients", "inverse"}
    assert {each.stem for each in figures.iterdir()} == names
    one = next(iter(several(read_strategy("blt-400")).by_name.values()))
    assert "blt" in mechanism_page(one)
    assert set(one.plot("noise").svgs) == {"noise"}
