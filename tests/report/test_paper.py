"""Figures and tables for papers: nothing covers anything, text is large enough, fonts are in the file, and
other programs read the tables."""

import ast
import csv
import io
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.base.errors import InputError
from fedray.commands.frame.output import print_pieces, run_command
from fedray.mechanisms.figures import Mechanisms, mechanism_figures
from fedray.mechanisms.files import read_strategy
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import STRATEGY_KINDS, Tree
from fedray.report.figure import KINDS, MARKERS, Axis, Figure, Mark, Series, look
from fedray.report.files import STYLES, drawn_figure, saved, write_figures
from fedray.report.plotly_json import plotly_figure
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.report.works import FEDRAY, works, works_named
from fedray.studies.stress.judged import StressRow
from fedray.studies.stress.result import StressResult

LEAST_POINTS = 7.0


def stressed() -> StressResult:
    """The four published pairs, with the figures that are printed for them."""
    spent = {
        (430, 100, 5, 90, 5): [("blt", 6.26, 0.001), ("banded", 6.58, 0.073), ("tree", 6.27, 0.0)],
        (1280, 400, 4, 300, 5): [("blt", 7.26, 0.009), ("tree", 7.16, 0.0)],
        (2350, 400, 6, 440, 6): [("blt", 5.84, 0.004), ("tree", 5.46, 0.0)],
        (2000, 1000, 2, 2001, 1): [("blt", 3.92, 0.011), ("tree", 3.94, 0.0)],
    }
    rows = tuple(
        StressRow(
            kind,
            *(n, b, k),
            kind=kind,
            min_sep=true,
            max_participations=most,
            epsilon=epsilon,
            noise_factor=epsilon / 6,
            is_exact=kind != "banded",
            regret=regret,
        )
        for (n, b, k, true, most), each in spent.items()
        for kind, epsilon, regret in each
    )
    return StressResult("", 6.0, 1e-10, (), rows)


def crowded() -> Figure:
    """Marks and named points that lie almost on one another."""
    x = np.array([100.0, 101.0, 102.0, 180.0])
    names = tuple(f"run {place} with a long name" for place in range(4))
    marks = [Mark(100.0 + place, f"claim {place}", axis) for place in range(4) for axis in "xy"]
    points = Series("points", "points", x, x, labels=names)
    lines = [Series(f"mechanism number {place}", "line", x, x + 3 * place) for place in range(7)]
    return Figure("crowded", "", "", Axis("x"), Axis("y"), (*lines, points), tuple(marks))


def texts_of(canvas: Any) -> list[Any]:
    """Every text of a figure that is seen."""
    from matplotlib.text import Text

    canvas.draw_without_rendering()
    hidden = set()
    for axes in canvas.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not min(limits) <= tick.get_loc() <= max(limits):
                    hidden |= {tick.label1, tick.label2}
    found = [each for each in canvas.findobj(Text) if each.get_visible() and each.get_text()]
    return [each for each in found if each not in hidden]


def overlaps(canvas: Any) -> list[tuple[str, str]]:
    """Pairs of texts of which one covers the other, by what the renderer measures."""
    boxes = [(each.get_text(), each.get_window_extent()) for each in texts_of(canvas)]
    return [
        (one, other)
        for (one, a), (other, b) in itertools.combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5
    ]


@cache
def figures() -> dict[str, Any]:
    setting = MinSep(150, 40, 3)
    strategies = {"blt-100": read_strategy("blt-100"), "tree": Tree()}
    judged = {
        name: mechanism_figures(each, setting, None, 1e-10) for name, each in strategies.items()
    }
    drawn = [
        *stressed().figures(),
        *Mechanisms(judged).figures(),
        crowded(),
    ]
    return {each.name: each for each in drawn}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", figures())
def test_no_text_covers_another_or_leaves_the_figure_and_all_can_be_read(name, style) -> None:
    canvas = drawn_figure(figures()[name], style)
    assert overlaps(canvas) == []
    assert canvas.get_size_inches()[0] == STYLES[style][0]
    for each in texts_of(canvas):
        assert each.get_fontsize() >= LEAST_POINTS, each.get_text()
        box = each.get_window_extent()
        assert min(box.min) >= -0.5, each.get_text()
        assert (box.max <= canvas.bbox.max + 0.5).all(), each.get_text()


def test_the_measure_finds_texts_that_cover_one_another() -> None:
    canvas = drawn_figure(crowded(), "paper")
    canvas.axes[0].text(0.5, 0.5, "first", transform=canvas.axes[0].transAxes)
    canvas.axes[0].text(0.52, 0.5, "second", transform=canvas.axes[0].transAxes)
    assert ("first", "second") in overlaps(canvas)


def test_pairs_of_a_stress_test_are_named_once_and_bounds_are_named() -> None:
    for figure in stressed().figures():
        texts = [each.get_text() for each in texts_of(drawn_figure(figure, "paper"))]
        for pair in ("100 to 90", "400 to 300", "400 to 440", "1,000 to 2,001"):
            assert texts.count(pair) == 1
        assert "banded (upper bound)" in texts
    assert figure.y.title == "Cost over the best of its kind (%)"
    assert max(figure.series[-1].y) == pytest.approx(7.3)
    (table,) = stressed().tables()
    column = table.columns.index("cost at equal epsilon")
    assert [row[column] for row in table.rows if row[0] == "banded"] == ["† <= +7.3 %"]


def test_a_pdf_has_its_fonts_as_truetype_and_the_same_bytes_again(tmp_path: Path) -> None:
    figure = stressed().figures()[0]
    content = saved(drawn_figure(figure, "paper"), "pdf")
    fonts = set(re.findall(rb"/BaseFont /(?:[A-Z]{6}\+)?([\w-]+)", content))
    assert b"STIXGeneral-Regular" in fonts or b"STIXGeneral" in fonts, fonts
    embedded = len(re.findall(rb"/FontFile2 ", content))
    assert embedded == len(fonts) > 0
    assert b"/Type3" not in content
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)
    assert float(box) == pytest.approx(72 * 3.25)
    assert saved(drawn_figure(figure, "paper"), "pdf") == content


def test_formats_and_styles_are_words_in_any_order(tmp_path: Path) -> None:
    names = [each.name for each in stressed().figures()]
    written = write_figures(stressed(), tmp_path / "a", "pdf,paper,png")
    assert [each.name for each in written] == [
        f"{name}.{suffix}" for name in names for suffix in ("pdf", "png", "csv", "tex")
    ]
    assert (tmp_path / "a" / "stress-epsilon.png").read_bytes()[:4] == b"\x89PNG"
    for wrong in ("poster", "paper,wide", "paper,eps", ""):
        with pytest.raises(InputError, match="must be one of paper, wide, slides"):
            write_figures(stressed(), tmp_path / "b", wrong)
    assert not (tmp_path / "b").exists()


def test_a_kind_of_mechanism_looks_the_same_in_every_figure_and_on_pages() -> None:
    seen: dict[str, set[Any]] = {}
    for figure in figures().values():
        for series, place in getattr(figure, "looks", []):
            if series.mechanism is not None:
                seen.setdefault(series.mechanism, set()).add(look(place))
                (trace,) = (
                    each
                    for each in plotly_figure(figure)["data"]
                    if each.get("name") == series.name
                    or each.get("name", "").startswith(series.name)
                )
                assert trace["line"] == dict(zip(("color", "dash"), look(place), strict=True))
    assert set(seen) == {"blt", "banded", "tree", "identity"}
    assert all(len(each) == 1 for each in seen.values())
    assert len(set.union(*seen.values())) == 4


def test_kinds_of_mechanisms_have_colours_and_markers_of_their_own() -> None:
    """But for kinds whose matrices are those of toeplitz: banded-toeplitz and integer-toeplitz."""
    colours = {kind: look(place)[0] for kind, place in KINDS.items()}
    assert {*STRATEGY_KINDS, "banded-toeplitz"} == {*colours}
    assert colours["banded-toeplitz"] == colours["integer-toeplitz"] == colours["toeplitz"]
    assert len({*colours.values()}) == len(STRATEGY_KINDS) - 1
    assert len({*MARKERS.values()}) == len(MARKERS) >= len({*KINDS.values()})


def test_further_mechanisms_of_a_kind_differ_in_their_dashes_only() -> None:
    x = np.array([1.0, 2.0])
    names = {"blt-100": "blt-100", "mine": "blt", "tree": "tree", "none": None}
    lines = [Series(name, "line", x, x, mechanism=kind) for name, kind in names.items()]
    found = Figure("f", "", "", Axis("x"), Axis("y"), tuple(lines)).looks
    (one, solid), (two, dashed), *others = (look(place) for _, place in found)
    assert one == two
    assert solid != dashed
    assert len({color for color, _ in (*others, (one, solid))}) == 3
    # Dashes would not tell more of them apart.
    many = [Series(str(each), "line", x, x, mechanism="blt") for each in range(6)]
    found = Figure("f", "", "", Axis("x"), Axis("y"), tuple(many)).looks
    assert len({look(place)[0] for _, place in found}) == 6


def test_a_kind_of_mechanism_without_a_colour_of_its_own_takes_one_that_is_left() -> None:
    x = np.array([1.0, 2.0])
    for others in (["blt"], ["blt", "tree", "bisr"], STRATEGY_KINDS):
        kinds = ["new", *others]
        lines = tuple(Series(each, "line", x, x, mechanism=each) for each in kinds)
        looks = Figure("f", "", "", Axis("x"), Axis("y"), lines).looks
        assert len({look(place) for _, place in looks}) == len(kinds)


def test_each_kind_has_a_marker_and_a_second_series_of_a_kind_has_it_filled() -> None:
    x, kinds = np.arange(3.0), ["blt", "banded-toeplitz", "banded", "tree", "band-fhu", "bisr"]
    points = [Series(each, "points", x, x, mechanism=each) for each in [*kinds, "banded"]]
    figure = Figure("f", "", "", Axis("x"), Axis("y"), tuple(points))
    (axes,) = drawn_figure(figure, "paper").axes
    markers = [each.get_marker() for each in axes.lines]
    assert len({*markers}) == len(kinds)
    assert markers[-1] == markers[2]
    assert [each.get_fillstyle() for each in axes.lines] == ["none"] * len(kinds) + ["full"]
    symbols = [each["marker"]["symbol"] for each in plotly_figure(figure)["data"]]
    assert len({*symbols[:-1]}) == len(kinds)
    assert symbols[2] == f"{symbols[-1]}-open"


def test_ticks_at_points_leave_room_for_their_numbers() -> None:
    x = np.array([60.0, 126.0, 130.0, 200.0])
    axis = Axis("x", at_points=True)
    figure = Figure("f", "", "", axis, Axis("y"), (Series("s", "points", x, x),))
    assert figure.ticks == [60.0, 126.0, 200.0]
    assert replace(figure, marks=(Mark(1000.0, "truth"),)).ticks == [60.0, 200.0]
    assert replace(figure, series=()).ticks == []


def test_long_lines_have_no_markers_and_whole_numbers_stand_on_whole_ticks() -> None:
    x = np.arange(150.0)
    for line, marker in (
        (Series("s", "line", x, x / 7), "None"),
        (Series("s", "line", x[:3], x[:3] / 7), "o"),
    ):
        (axes,) = drawn_figure(Figure("f", "", "", Axis("x"), Axis("y"), (line,)), "paper").axes
        assert axes.lines[0].get_marker() == marker
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_gap_in_whole_numbers_leaves_their_axis_whole() -> None:
    """Participations of a sweep, one of whose cells starved: in files and on pages."""
    line = Series("s", "line", np.arange(4.0), np.array([1.0, np.nan, 2.0, 3.0]))
    figure = Figure("f", "", "", Axis("x"), Axis("k", starts_at_zero=False), (line,))
    (axes,) = drawn_figure(figure, "paper").axes
    assert all(float(tick).is_integer() for tick in axes.get_yticks())
    layout = plotly_figure(figure)["layout"]
    assert (layout["xaxis"]["dtick"], layout["yaxis"]["dtick"]) == (1, 1)
    other = replace(figure, series=(replace(line, y=line.y / 7),))
    assert "dtick" not in plotly_figure(other)["layout"]["yaxis"]


def test_a_drawing_in_python_is_restyled_before_it_is_shown() -> None:
    drawing = stressed().plot("stress-epsilon", "paper")
    drawing.figures["stress-epsilon"].axes[0].set_xlabel("another name")
    assert "another name" in drawing.svgs["stress-epsilon"]
    assert drawing.figures["stress-epsilon"].get_size_inches()[0] == 3.25


TABLE = Table.headed(
    "Spent_at 5 %",
    [
        ("mechanism", "epsilon", "regret", "b & k"),
        (r"my_file\1.json", "1,234.5", "+7.3 %", "400, 4"),
        ("tree", "<= 6.58", "-", "50 % {a}~b^c#$"),
    ],
    "A note with 95 %.",
)


def latex_cells(text: str) -> list[list[str]]:
    """A reader of LaTeX tables that shares no code with the writer: it goes through the characters, and
    refuses what LaTeX would refuse."""
    text = re.sub(
        r"\\begin\{tabular\}\[b\]\{@\{\}[lr]@\{\}\}(.*?)\\end\{tabular\}",
        lambda found: found[1].replace(r"\\", " "),
        text,
    )
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert re.fullmatch(r"\\begin\{(table\*?)\}", lines[0]), lines[0]
    assert lines[1].startswith(r"\caption{")
    assert lines[1].endswith(r"\label{tab:fedray}")
    assert (lines[2], lines[-1]) == (r"\centering", lines[0].replace("begin", "end"))
    lines = lines[3:-1]
    assert lines[0].startswith(r"\smallskip\sbox0{\begin{tabular}{")
    if lines[-1].startswith(r"\par\smallskip\footnotesize Columns: "):
        lines.pop()
    assert lines.pop().startswith(r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}")
    assert lines[-1] == r"\end{tabular}}"
    columns = lines[0].removeprefix(r"\smallskip\sbox0{\begin{tabular}{@{}").removesuffix("@{}}")
    columns = columns.replace(r"@{\hspace{6pt}}", "")
    assert set(columns) <= set("lr")
    assert [each for each in lines[1:-1] if not each.endswith(r"\\")] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    commands = {"textbackslash": "\\", "backslash": "\\", "textasciitilde": "~", "leq": "<="}
    commands["dagger"] = "†"
    commands |= {"textasciicircum": "^", "varepsilon": "epsilon"}
    rows = []
    for line in lines[1:-1]:
        if not line.endswith(r"\\"):
            continue
        cells, cell, rest, is_math = [], "", line.removesuffix(r"\\").rstrip(), False
        while rest:
            if (found := re.match(r"\\([a-z]+)(\{\})?", rest)) is not None:
                assert is_math or found[1].startswith("text")
                cell += commands[found[1]]
                rest = rest[found.end() :]
                continue
            if rest[0] == "\\":
                assert rest[1] in "&%#_{}$"
                cell, rest = cell + rest[1], rest[2:]
                continue
            if rest[0] == "$":
                is_math = not is_math
            elif rest[0] == "&":
                cells.append(cell.strip())
                cell = ""
            else:
                assert rest[0] not in "%#_{}~^"
                assert is_math or rest[0] not in "<>|"
                cell += rest[0]
            rest = rest[1:]
        assert not is_math
        rows.append([*cells, cell.strip()])
        assert len(rows[-1]) == len(columns)
    return rows


def test_another_program_reads_the_latex_table() -> None:
    assert latex_cells(TABLE.rendered("tex")) == [
        ["mechanism", "epsilon", "regret (%)", "b & k"],
        [r"my_file\1.json", "1,234.5", "+7.3", "400, 4"],
        ["tree", "<= 6.58", "-", "50 % {a}~b^c#$"],
    ]
    assert r"\begin{tabular}{@{}lrrl@{}}" in TABLE.rendered("tex")
    (table,) = stressed().tables()
    rows = latex_cells(table.rendered("tex"))
    assert len(rows) == 1 + len(table.rows)
    assert "MaxLoss" not in rows[0], "a paper has no room for details"
    assert "cost at equal epsilon (%)" in rows[0]


def test_a_caption_has_values_as_formulas_and_lists_as_they_are() -> None:
    title = "epsilon 4 at delta 1e-10, sigma 2.5e-08 (k 2), rounds 430"
    caption = Table.headed(f"{title}; b, k 90, 5; n 1,280", [("a",)]).rendered("tex")
    assert r"{$\varepsilon = 4$ at $\delta = 10^{-10}$, " in caption
    assert r"$\sigma = 2.5 \times 10^{-8}$ ($k = 2$), rounds 430; " in caption
    assert r"$b$, $k$ 90, 5; $n$ 1,280}" in caption
    number = "0.0070314825502323835"
    assert number in Table.facts("", [("omega", number)]).rendered("tex"), "no line ends in it"


def test_a_plus_minus_is_a_formula_wherever_it_stands() -> None:
    heads = ("setting", "mean ± 95 %")
    table = Table.headed(
        "a ± b", [heads, ("blt", "0.31 ± 0.13")], "In all rows: k 4 ± 1.", "± note"
    )
    text = table.rendered("tex")
    assert text.isascii()
    assert r"0.31 $\pm$ 0.13" in text
    assert r"mean $\pm$ 95 \%" in text


def test_a_table_takes_both_columns_of_a_page_only_if_one_is_too_narrow() -> None:
    def kind(*cells: str) -> str:
        heads = tuple(f"h{place}" for place in range(len(cells)))
        return Table.headed("", [heads, cells]).rendered("tex").splitlines()[0]

    assert kind(*["1.25"] * 6) == r"\begin{table}"
    assert kind(*["1.25"] * 10) == r"\begin{table}", "with smaller gaps"
    assert kind(*["1.25"] * 12) == r"\begin{table*}"
    assert kind("a" * 30, "b" * 30) == r"\begin{table*}"
    assert kind("a word " * 9, "1") == r"\begin{table}", "prose has lines of 14 em"
    assert kind("a word " * 9, "1", *["12,345.67"] * 3) == r"\begin{table*}"


ROOT = Path(__file__).resolve().parents[2]


def sources() -> Iterator[tuple[str, bool]]:
    """Every string of the source, and whether it is one that may be printed: no docstring."""
    for folder in ("fedray", "clients", "server", "mechanisms", "scenarios"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            docs = {each.value for each in ast.walk(tree) if isinstance(each, ast.Expr)}
            for each in ast.walk(tree):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield " ".join(each.value.split()).replace(" and ", ", "), each not in docs


@pytest.mark.slow
def test_every_work_that_is_printed_has_an_entry_and_no_entry_is_invented() -> None:
    texts = list(sources())
    name = r"[A-Z][\w-]+"
    cited = re.compile(rf"{name}(?:(?:, {name})*|(?: et al\.)) (?:19|20)\d\d\b")
    printed = {each for text, is_printed in texts if is_printed for each in cited.findall(text)}
    assert len(printed) > 15
    # "Renyi DP, Mironov 2017" has one author.
    missing = [each for each in printed if not any(each.endswith(known) for known in works())]
    assert missing == []
    for known in works():
        assert any(known in text for text, _ in texts), known


def test_an_entry_has_authors_a_title_a_venue_and_the_year_that_is_cited() -> None:
    entries = works()
    assert len({key for key, _ in entries.values()}) == 34
    for name, (key, entry) in entries.items():
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.M))
        assert {"author", "title", "year"} < set(fields), key
        assert {"booktitle", "journal"} & set(fields), key
        assert "cited" not in fields
        assert fields["year"] == name[-4:] == re.sub(r"\D", "", key)
        first = re.sub(r"[{}\\'\"^~]", "", fields["author"].split(" and ")[0])
        assert first.split()[-1] == name.partition(",")[0].split()[0], key
        # "et al." is for more than two, and otherwise all are named.
        authors = fields["author"].count(" and ") + 1
        assert authors > 2 if "et al." in name else authors == name.count(",") + 1, key
        assert entry.count("{") == entry.count("}")


def test_a_table_names_the_papers_of_its_mechanisms_and_the_works_that_it_cites() -> None:
    rows = [("mechanism", "by"), ("blt-400", "Choquette-Choo et al. 2023, Theorem 2"), ("mine", "")]
    table = Table.headed("", rows, "rho alone, Canonne, Kamath and Steinke 2020, Corollary 13")
    assert set(works_named([table])) == {
        "mcmahan2024hassle",
        "choquettechoo2023amplified",
        "canonne2020discrete",
    }
    for kind in (
        "banded-toeplitz",
        "tree, online",
        "banded (upper bound)",
        "identity",
        "tree-full",
    ):
        assert works_named([Table.headed("", [("mechanism",), (kind,)])]), kind
    assert not works_named([Table.headed("", [("name",), ("a tree in prose",), ("matrix",)])])


def test_a_heading_has_symbols_and_as_many_lines_as_its_cells_leave_room_for() -> None:
    table = Table.headed("", [("a", "true report_goal (b)", "z of n"), ("x", "1", "123,456")])
    stacked = r"\begin{tabular}[b]{@{}r@{}}true report\\goal ($b$)\end{tabular}"
    assert table.rendered("tex").splitlines()[5] == rf"a & {stacked} & $z$ of $n$ \\"


def test_a_table_without_rows_is_a_latex_table_whose_label_has_no_special_character() -> None:
    lines = Table.headed("", [("a", "epsilon")]).rendered("tex", "50% of {x}").splitlines()
    assert lines[1].endswith(r"\label{tab:50--of--x-}")
    assert r"\smallskip\sbox0{\begin{tabular}{@{}ll@{}}" in lines
    assert "\\bottomrule" in lines


@pytest.mark.outside
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_a_paper_of_two_columns_with_figures_and_tables_in_their_widths(
    tmp_path: Path, trace_of, trained_of
) -> None:
    write_figures(stressed(), tmp_path, "paper,pdf")
    trace = trace_of([[0, 2], [1, 3], [0], [1, 2], [3]], 4)
    keys = {"blt": (), "tree": ('privacy.mechanism={kind="tree"}',)}
    runs = [trained_of(name, trace, {"accuracy": 0.5}, *each) for name, each in keys.items()]
    facts = Table.facts("", [("by", "a long sentence of words " * 9), ("k", "4")])
    wide = Table.headed("", [("a word " * 9, "b"), ("█" * 30, "0123456789abcdef" * 4 + " is it")])
    tables = [
        TABLE,
        stressed().tables()[0],
        facts,
        wide,
        *fedray.compare_runs(runs, trace).tables(),
    ]
    for place, table in enumerate(tables):
        (tmp_path / f"{place}.tex").write_text(table.rendered("tex", str(place)))
    shown = [rf"\input{{{place}}}" for place in range(len(tables))]
    drawn = [each.name for each in stressed().figures()]
    shown += [rf"\includegraphics[width=\columnwidth]{{{each}.pdf}}" for each in drawn]
    head = r"\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}\parindent0pt"
    body = [head, r"\begin{document}", "\n\n".join(shown), r"\end{document}"]
    (tmp_path / "paper.tex").write_text("\n".join(body))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout


def test_a_bracket_is_no_length_after_the_row_before_and_a_cell_is_one_line() -> None:
    table = Table("", ("a", "b"), (("x", "y\nz"), ("[1, 2]", "")))
    assert table.rendered("tex").splitlines()[7:9] == [
        r"x & y$\backslash$nz \\",
        r"{[}1, 2] &  \\",
    ]
    assert table.rendered("md").splitlines()[2] == r"| x | y\nz |"


def test_csv_has_every_column_and_numbers_that_programs_read() -> None:
    assert list(csv.reader(io.StringIO(TABLE.rendered("csv")))) == [
        ["mechanism", "epsilon", "regret (%)", "b & k"],
        [r"my_file\1.json", "1234.5", "+7.3", "400, 4"],
        ["tree", "<= 6.58", "", "50 % {a}~b^c#$"],
    ]
    (table,) = stressed().tables()
    rows = list(csv.DictReader(io.StringIO(table.rendered("csv"))))
    assert [float(row["rounds"]) for row in rows][:4] == [430, 430, 430, 1280]
    assert "MaxLoss" in rows[0]


def test_markdown_keeps_its_columns() -> None:
    head, rule, *rows = Table.headed("", [("a", "b"), ("x|y", "2")]).rendered("md").splitlines()
    assert (head, rule, rows) == ("| a | b |", "| --- | ---: |", [r"| x\|y | 2 |"])


def test_commands_write_what_they_print_and_refuse_what_they_cannot_write(
    fedray_command, tmp_path: Path
) -> None:
    setting = ("--rounds", "60", "--min-sep", "20", "--max-participations", "3")
    file = tmp_path / "new" / "mechanism.csv"
    code, out, _ = fedray_command("mechanism", "tree", "identity", *setting, "--table", str(file))
    assert code == 0
    assert str(file) in out
    rows = list(csv.reader(file.open()))
    assert any("tree" in row for row in rows)
    for arguments, said in (
        (("--table", str(tmp_path / "x.doc")), "must be NAME.csv"),
        (("--table", str(file / "x.csv")), "of --table cannot be made a directory"),
        (("--table", str(file), "--json"), "does not go with `--json`"),
        (("--columns", "epsilon"), "--columns='epsilon' chooses columns of a file of tables"),
        (
            ("--figures", str(tmp_path / "f"), "--style", "poster"),
            "--style='poster' must be one of",
        ),
    ):
        code, out, err = fedray_command("mechanism", "tree", *setting, *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "f").exists()


SETTING = ("--rounds", "60", "--min-sep", "20", "--max-participations", "3")


def test_columns_are_chosen_by_their_headings_in_the_order_that_is_given(
    fedray_command, tmp_path: Path
) -> None:
    """With details that terminals leave out, with a heading's unit or without, and with a column that
    is a note because its cells are equal."""
    given = ("mechanism", "tree", "identity", *SETTING, "--epsilon", "4")
    file = tmp_path / "chosen.tex"
    columns = "noise multiplier, mechanism ,RmsLoss,sensitivity is,epsilon"
    code, _, err = fedray_command(*given, "--table", str(file), "--columns", columns)
    assert (code, err) == (0, "")
    text = file.read_text()
    (head,) = [line for line in text.splitlines() if line.endswith("RmsLoss \\\\")]
    assert [r"noise\\multiplier" in each or each for each in head.split(" & ")[:2]] == [
        True,
        "mechanism",
    ]
    assert "In all rows: sensitivity is exact" in text


def test_a_wrong_column_is_named_after_all_columns_were_written(
    fedray_command, tmp_path: Path
) -> None:
    file = tmp_path / "all.csv"
    given = ("mechanism", "tree", "identity", *SETTING, "--table", str(file))
    code, out, err = fedray_command(*given, "--columns", "mechanism,epsilo")
    assert code == 2
    assert "has no column 'epsilo' (tables were written with all columns); choose from" in err
    assert "RmsLoss" in err
    assert err.count("\n") == 1
    assert str(file) in out
    assert "MaxLoss" in next(csv.reader(file.open()))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("max error", "has only columns that are notes (tables were written with all columns)"),
        ("max error (b, k),max error", "has only columns that are notes"),
        # The first word of a heading is no heading.
        ("mechanism,max", "has no column 'max'"),
    ],
)
def test_a_column_that_is_only_a_note_leaves_all_columns(
    fedray_command, monkeypatch, tmp_path: Path, columns: str, said: str
) -> None:
    heads = ("mechanism", "rho", "max error", "max error (b, k)")
    table = Table.headed("t", [heads, ("a", "1", "3", "4"), ("b", "2", "3", "4")]).varied()
    assert table.shared == heads[2:]
    monkeypatch.setattr("fedray.base.result.Result.tables", lambda self: [table])
    file = tmp_path / "all.csv"
    given = ("mechanism", "tree", *SETTING, "--table", str(file), "--columns", columns)
    code, _, err = fedray_command(*given)
    assert (code, err.count("\n")) == (2, 1)
    assert f"--columns={columns!r} {said}" in err
    assert next(csv.reader(file.open())) == ["mechanism", "rho"]


def test_a_wrong_column_is_named_beside_a_broken_claim_which_decides_the_exit_code(
    fedray_command, trace_of, tmp_path: Path
) -> None:
    claim, file = tmp_path / "claim.toml", tmp_path / "all.csv"
    claim.write_text('mechanism = "tree"\nnoise_multiplier = 3.0\nmin_sep = 2\n')
    trace = trace_of([[0, 1], [2]], 3)
    given = ("audit", str(trace.path), "--claim", str(claim), "--table", str(file))
    code, _, said = fedray_command(*given)
    assert (code, said.count("\n")) == (1, 1)
    code, out, err = fedray_command(*given, "--columns", "epsilo")
    assert (code, f"table    {file}" in out) == (1, True)
    mistake = err.removeprefix(said)
    assert mistake.startswith("fedray: --columns='epsilo' has no column 'epsilo'")
    assert mistake.count("\n") == 1


def test_a_column_that_says_in_what_rows_differ_cannot_be_left_out(
    fedray_command, monkeypatch, tmp_path: Path
) -> None:
    """Headings may have commas."""
    cells: dict[str, Callable[[str], str]] = {
        "condition": lambda each: each,
        "rho, (b, k)": lambda each: "0.5",
    }
    table = Table.of("t", ["if x=1", "if x=2"], cells, subject=lambda each: Subject("p", each))
    monkeypatch.setattr("fedray.base.result.Result.tables", lambda self: [table])
    written = {}
    for columns in ("rho, (b, k),condition", '"rho, (b, k)", condition', "rho, (b, k)"):
        file = tmp_path / f"{len(written)}.csv"
        given = ("mechanism", "tree", *SETTING, "--table", str(file), "--columns", columns)
        code, _, err = fedray_command(*given)
        written[code] = (next(csv.reader(file.open())), err)
    heads, err = written[0]
    assert (heads, err) == (["rho, (b, k)", "condition", "of"], "")
    heads, err = written[2]
    assert heads[0] == "condition"
    assert "hides in which condition rows differ" in err
    assert "add the column 'condition'" in err


def test_a_caption_has_the_settings_of_the_command(fedray_command, tmp_path: Path) -> None:
    file = tmp_path / "t.tex"
    given = ("mechanism", "tree", "identity", *SETTING, "--epsilon", "4", "--delta", "1e-6")
    assert fedray_command(*given, "--table", str(file))[0] == 0
    (caption,) = [line for line in file.read_text().splitlines() if line.startswith(r"\caption")]
    assert r"target $\varepsilon = 4$" in caption
    assert caption.count(r"\delta") == 1
    assert "60 rounds" in caption


def test_a_budget_is_no_target(fedray_command, tmp_path: Path) -> None:
    file = tmp_path / "t.md"
    given = ("--epsilon", "4", "--delta", "1e-6", "--table", str(file))
    assert fedray_command("budget", str(tmp_path / "ledger"), *given)[0] == 0
    texts = [each.read_text() for each in (tmp_path / "t-2.md", file)]
    assert [each.partition(",")[0] for each in texts] == [
        "of ledger ledger",
        "Budget: epsilon 4 at delta 1e-06 of a device in a quarter",
    ]


def test_runs_are_said_once_by_the_subject(tmp_path: Path) -> None:
    """A plan of 3 seeds is confirmed by 1 run."""
    table = replace(Table.headed("t", [("a",), ("1",)]), subject=Subject("p", runs="1 run"))

    def command(epsilon: float, seeds: int) -> None:
        print_pieces([table])

    file = tmp_path / "t.md"
    run_command(command, {"epsilon": 4.0, "seeds": 3, "table_file": file})
    assert file.read_text().partition("\n")[0] == "t, target epsilon 4, of p, in 1 run"


def test_fedray_is_cited_as_its_citation_file_says() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    for key in ("version", "title"):
        (value,) = re.findall(rf'^{key}: "?(.*?)"?$', citation, re.M)
        assert f"  {key} = {{{value}}}" in FEDRAY
    (date,) = re.findall(r"^date-released: (\d+)", citation, re.M)
    assert f"year = {{{date}}}" in FEDRAY


def test_a_caption_of_a_mechanism_names_it_its_setting_and_its_units(
    fedray_command, tmp_path: Path
) -> None:
    made = tmp_path / "mine.json"
    assert fedray_command("optimize", "blt", *SETTING, "--out", str(made))[0] == 0
    for given, name in (((str(made),), "Mechanism mine"), ((str(made), "tree"), "Mechanisms")):
        file, page = tmp_path / "t.tex", tmp_path / "page.html"
        written = ("--table", str(file), "--page", str(page))
        assert fedray_command("mechanism", *given, *SETTING, *written)[0] == 0
        (caption,) = [line for line in file.read_text().splitlines() if "caption" in line]
        assert caption.startswith(rf"\caption{{{name}, $n$ = 60, $b$ = 20, $k$ = 3, ")
        assert "at mu = 1" in caption.replace(r"$\mu$", "mu")
        assert "for RmsLoss" in caption
        assert f"<h2>{name}, n = 60, b = 20, k = 3, " in page.read_text()


def test_a_figure_for_latex_has_a_float_with_its_caption(tmp_path: Path) -> None:
    write_figures(stressed(), tmp_path, "paper,pdf")
    text = (tmp_path / "stress-epsilon.tex").read_text()
    assert r"\includegraphics[width=\linewidth]{stress-epsilon}" in text
    assert r"\caption{Epsilon" in text.replace(r"$\varepsilon$", "Epsilon").replace(
        r"$\epsilon$", "Epsilon"
    )
    assert "for RmsLoss" in text
    assert r"\label{fig:stress-epsilon}" in text


def test_a_coefficient_over_many_decades_has_a_tick_for_each_of_a_few() -> None:
    x = np.arange(1.0, 40.0)
    line = Series("s", "line", x, 10.0 ** (-x / 3))
    figure = Figure("f", "", "", Axis("x"), Axis("y", is_log=True), (line,))
    canvas = drawn_figure(figure, "paper")
    assert overlaps(canvas) == []
    low, high = canvas.axes[0].get_ylim()
    shown = [each for each in canvas.axes[0].get_yticks() if low <= each <= high]
    assert 3 <= len(shown) <= 8


def test_near_points_of_an_axis_have_their_numbers_and_every_point_a_tick() -> None:
    """Two digits need less room than five."""
    x = np.array([29.0, 32.0, 48.0, 72.0])
    axis = Axis("x", is_log=True, at_points=True)
    figure = Figure("f", "", "", axis, Axis("y"), (Series("s", "points", x, x),))
    assert figure.ticks == [*x]
    assert overlaps(drawn_figure(figure, "paper")) == []
    near = np.array([29.0, 29.5, 48.0])
    figure = Figure("f", "", "", axis, Axis("y"), (Series("s", "points", near, near),))
    axes = drawn_figure(figure, "paper").axes[0]
    assert {*axes.get_xticks(), *axes.get_xticks(minor=True)} == {*near}


def test_references_of_a_folder_get_what_they_lack_and_keep_what_they_have(
    fedray_command, tmp_path: Path
) -> None:
    references, file = tmp_path / "references.bib", tmp_path / "t.tex"
    mine = "@misc{kairouz2021practical,\n  title = {mine}\n}\n"
    references.write_text(mine)
    given = ("mechanism", "tree", "blt-100", *SETTING, "--table", str(file))
    code, out, _ = fedray_command(*given)
    assert (code, str(references) in out) == (0, True)
    text = references.read_text()
    assert text.startswith(mine)
    assert re.findall(r"@\w+\{(\w+),", text) == [
        "kairouz2021practical",
        "honaker2015efficient",
        "mcmahan2024hassle",
        "fedray",
    ]
    (cited,) = [each for each in file.read_text().splitlines() if "Mechanisms: " in each]
    tree = r"tree~\cite{honaker2015efficient,kairouz2021practical}"
    line = rf"Mechanisms: {tree}; blt~\cite{{mcmahan2024hassle}}."
    assert cited == rf"\par\smallskip\footnotesize {line}", "LaTeX reads it"
    # There is nothing more to add, so the file stays as it is.
    assert str(references) not in fedray_command(*given)[1]
    assert references.read_text() == text
    references.write_bytes(b"\xff")
    code, _, err = fedray_command(*given)
    assert (code, "references.bib' cannot be read" in err) == (2, True)
    assert references.read_bytes() == b"\xff"
    assert fedray_command(*given[:-1], str(tmp_path / "t.csv"))[0] == 0
