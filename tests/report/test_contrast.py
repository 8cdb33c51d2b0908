"""Texts and marks of every page differ from their background as much as WCAG 2.2 asks, level AA.

A text has a ratio of 4.5 (success criterion 1.4.3), and what is drawn and means something one of 3
(1.4.11). Rules between rows, borders of sections and grid lines mean nothing.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files

import numpy as np
import pytest

from fedray.report.figure import COLORS, GREY, Axis, Figure, Mark, Series
from fedray.report.plotly_json import plotly_figure

TEXT, DRAWN = 4.5, 3.0
Colour = tuple[float, float, float]
TEMPLATES = files("fedray.report")
STYLE = TEMPLATES.joinpath("style.html.j2").read_text()
PLOTS = TEMPLATES.joinpath("plots.html.j2").read_text()
SCHEMES = ("light", "dark", "print")
VARIABLE = re.compile(r"--(\w+): ?(#[0-9a-f]{3,6})\b")
EDGES = (
    "border-top",
    "border-left",
    "border-top-color",
    "border-left-color",
    "outline",
    "accent-color",
)
"""Properties of what means something; a `border` all around does not."""
STATES = {"good", "bad", "open"}
"""Colours of verdicts, of which no marked row has one: a row has one style."""


def colour(text: str) -> Colour:
    """The parts of "#1f66b8" or "#fff", 0 to 255."""
    digits = text.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * each for each in digits)
    red, green, blue = bytes.fromhex(digits)
    return red, green, blue


def over(front: Colour, share: float, below: Colour) -> Colour:
    """What is seen where `front` covers a share of what is below."""
    red, green, blue = (
        share * one + (1 - share) * other for one, other in zip(front, below, strict=True)
    )
    return red, green, blue


def luminance(seen: Colour) -> float:
    """Relative luminance, by the definition of WCAG 2.2."""
    parts = [each / 255 for each in seen]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio, 1 to 21."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def scheme(name: str) -> Mapping[str, Colour]:
    """The colours of a scheme, by the names of the style sheet's variables."""
    roots = re.findall(r"^(?:@media ([^{]*) \{ )?:root \{([^}]*)\}", STYLE, flags=re.MULTILINE)
    of_media = {"light": "", "dark": "(prefers-color-scheme: dark)", "print": "print"}
    (content,) = (each for media, each in roots if media == of_media[name])
    return {key: colour(value) for key, value in VARIABLE.findall(content)}


def rules(sheet: str) -> Iterator[tuple[str, str, str]]:
    """(selector, property, value) of everything in a style sheet; what follows from a condition
    stands as if it always held."""
    plain = re.sub(r"@(?:media|container)[^{]*\{", "", sheet)
    for selector, content in re.findall(r"([^{}]+)\{([^{}]*)\}", plain):
        for declaration in content.split(";"):
            name, _, value = declaration.partition(":")
            if value:
                yield selector.strip(), name.strip(), value.strip()


def declared(*names: str) -> set[tuple[str, str]]:
    """(selector, value) of what the pages' style sheets say of some properties."""
    sheets = re.findall(r"<style>(.*?)</style>", STYLE, flags=re.DOTALL)
    return {(at, value) for sheet in sheets for at, name, value in rules(sheet) if name in names}


def text_colours() -> set[str]:
    """The variables in which texts are written."""
    return {value.removeprefix("var(--").removesuffix(")") for _, value in declared("color")}


def test_ratios_are_those_of_the_definition() -> None:
    assert contrast(colour("#000"), colour("#fff")) == pytest.approx(21.0)
    assert contrast(colour("#767676"), colour("#fff")) == pytest.approx(4.54, abs=0.005)
    assert over(colour("#000"), 0.25, colour("#ffffff")) == (191.25, 191.25, 191.25)


def test_every_colour_of_a_page_is_a_variable_whose_pairs_are_known() -> None:
    """A colour or a background that is none of these would be in no test below."""
    variables = set(scheme("light"))
    assert variables == set(scheme("dark")) == set(scheme("print"))
    assert text_colours() <= variables
    backgrounds = {value for _, value in declared("background", "background-color")}
    mixed = "color-mix(in srgb, var(--accent) 12%, transparent)"
    assert backgrounds == {"var(--page)", "var(--card)", "none", mixed}
    # Nothing makes a text fainter than its colour.
    assert not declared("opacity", "filter", "mix-blend-mode")


@pytest.mark.parametrize("name", SCHEMES)
def test_texts_can_be_read_on_the_page_and_on_its_sections(name: str) -> None:
    colours = scheme(name)
    assert {"ink", "soft", "accent", *STATES} <= text_colours()
    for text in text_colours():
        for below in ("page", "card"):
            assert contrast(colours[text], colours[below]) >= TEXT, (text, below)


@pytest.mark.parametrize("name", SCHEMES)
def test_texts_can_be_read_in_marked_rows(name: str) -> None:
    colours = scheme(name)
    marked = over(colours["accent"], 0.12, colours["card"])
    for text in text_colours() - STATES:
        assert contrast(colours[text], marked) >= TEXT, text


@pytest.mark.parametrize("name", SCHEMES)
def test_lines_that_mean_something_are_seen(name: str) -> None:
    """Series, marks and axes; the edges of verdicts and guarantees, what is in focus, progress."""
    colours = scheme(name)
    for drawn in (*map(colour, [*COLORS, GREY]), colours["soft"]):
        assert contrast(drawn, colours["card"]) >= DRAWN, drawn
    edges = {
        found for _, value in declared(*EDGES) for found in re.findall(r"var\(--(\w+)\)", value)
    }
    assert {"soft", "accent", *STATES} <= edges
    for edge in edges:
        for below in ("page", "card"):
            assert contrast(colours[edge], colours[below]) >= DRAWN, (edge, below)


def test_bands_and_zones_have_an_outline_since_they_are_faint() -> None:
    values = np.array([1.0, 2.0])
    band = Series("a", "line", values, values, low=values - 0.5, high=values + 0.5)
    zone = Mark(1.0, "left out", until=1.5)
    figure = plotly_figure(Figure("f", "F", "n", Axis("x"), Axis("y"), (band,), (zone,)))
    drawn = figure["data"][0]
    assert drawn["line"] == {"color": COLORS[0], "width": 1}
    assert figure["layout"]["shapes"][0]["line"] == {"color": GREY, "width": 1}
    # An opacity of the whole would make the outline as faint as the area.
    assert "opacity" not in drawn | figure["layout"]["shapes"][0]


def test_what_is_pointed_at_is_told_in_the_pages_own_colours() -> None:
    """plotly.js would write on the line's colour, and the line's name in that colour."""
    assert "layout.hoverlabel = { bgcolor: card, bordercolor: soft, font: { color: ink } }" in PLOTS
    values = np.array([1.0, 2.0])
    several = tuple(Series(name, "line", values, values) for name in "ab")
    for shown in (several[:1], several):
        figure = plotly_figure(Figure("f", "F", "n", Axis("x"), Axis("y"), shown))
        assert all(each["hovertemplate"].endswith("<extra></extra>") for each in figure["data"])


def test_saved_figures_can_be_read_on_paper() -> None:
    found = re.search(r"const onPaper = \{([^}]*)\}", PLOTS)
    assert found is not None
    paper = {name: colour(value) for name, value in re.findall(r'(\w+): "(#\w+)"', found[1])}
    for text in ("ink", "soft"):
        assert contrast(paper[text], paper["card"]) >= TEXT
    for drawn in map(colour, [*COLORS, GREY]):
        assert contrast(drawn, paper["card"]) >= DRAWN
