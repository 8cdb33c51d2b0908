"""Pictures of mechanisms: every number against a slow twin, and what the page and the files have."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
import slow_twins as reference

from fedray.mechanisms.figures import Figures, Mechanisms, mechanism_figures
from fedray.mechanisms.files import read_strategy
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BISR, BandFHU, Identity, Tree
from fedray.mechanisms.workload import PREFIX, Workload
from fedray.report.figure import Figure, HeatMap
from fedray.report.files import drawn_figure, figure_csv, heat_svg, saved
from fedray.report.mechanism_figures import CELLS, mechanism_page

ROUNDS = 150
SETTING = MinSep(ROUNDS, 40, 3)
MOMENTUM = Workload(momentum=0.9)


def several(*strategies, workload: Workload = PREFIX) -> Mechanisms:
    found = {}
    for each in strategies:
        found[each.kind] = mechanism_figures(each, SETTING, None, 1e-10, workload=workload)
    return Mechanisms(found)


def by_name(found: Mechanisms | Figures) -> dict[str, Figure | HeatMap]:
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
        np.testing.assert_allclose(series.y, slow[series.x.astype(int) - 1], rtol=1e-9)
        assert (series.x[0], series.x[-1]) == (1, ROUNDS)
    ours, _, alone = figure.series
    assert ours.y[-1] < alone.y[-1]


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
            np.testing.assert_allclose(series.y, slow[series.x.astype(int)], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("workload", [PREFIX, MOMENTUM], ids=str)
def test_the_cells_of_heat_maps_are_root_mean_squares(workload) -> None:
    """Cell by cell, with as many rows and columns of the matrix in it as its edges say."""
    restarted = Tree(restarts=(70,))
    for strategy in (read_strategy("blt-100"), restarted):
        figures = by_name(several(strategy, workload=workload))
        A = reference.workload_matrix(workload, ROUNDS)
        slow = {
            f"c-{strategy.kind}": strategy.definition(ROUNDS),
            f"b-{strategy.kind}": A @ reference.noise_map(strategy, ROUNDS),
        }
        for name, matrix in slow.items():
            heat = figures[name]
            assert isinstance(heat, HeatMap)
            assert heat.ends == matrix.shape
            rows, columns = (np.arange(each) * CELLS // each for each in matrix.shape)
            for cell in ((0, 0), (63, 0), (31, 20), (63, 63), (5, 60)):
                part = matrix[np.ix_(rows == cell[0], columns == cell[1])]
                expected = np.sqrt(np.mean(part**2))
                assert heat.cells[cell] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_heat_map_is_drawn_and_written_cell_by_cell() -> None:
    heat = by_name(several(read_strategy("blt-100")))["c-blt"]
    assert isinstance(heat, HeatMap)
    svg = heat_svg(heat)
    assert len(re.findall(r"M[^M]*z", svg)) == np.count_nonzero(heat.cells) + 1  # and the frame
    assert "<image" in saved(drawn_figure(heat), "svg").decode()
    rows = list(csv.reader(io.StringIO(figure_csv(heat))))[1:]
    assert len(rows) == CELLS**2
    assert [float(row[2]) for row in rows] == heat.cells.ravel().tolist()
    assert heat.shades().max() == 1.0
    assert heat.shades()[0, -1] == 0.0


def test_the_page_has_all_of_it(fedray_command, tmp_path: Path) -> None:
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    setting = ("--rounds", "150", "--min-sep", "40", "--max-participations", "3")
    written = ("--page", str(page), "--figures", str(figures))
    code, out, _ = fedray_command("mechanism", "blt-400", "tree", *setting, *written)
    assert code == 0
    assert str(page) in out
    text = page.read_text()
    assert text.count('<svg class="heat"') == 4
    assert "Noise of the prefix sums at equal privacy" in text
    names = {"noise", "coefficients", "inverse", "c-blt-400", "c-tree", "b-blt-400", "b-tree"}
    assert {each.stem for each in figures.iterdir()} == names
    one = next(iter(several(read_strategy("blt-400")).by_name.values()))
    assert "blt" in mechanism_page(one)
    assert set(one.plot("noise").svgs) == {"noise"}
