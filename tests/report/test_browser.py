"""A browser draws every page without an error, nothing ends at the right edge, and figures are saved without a network."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.imports.importer import import_log
from fedray.report.figure import Axis, Figure, Series, needs_log
from fedray.report.page import audit_page, render_study
from fedray.report.table import Table
from fedray.scenarios.reproduction import Reproduced, agreement_figure

pytestmark = [
    pytest.mark.outside,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="needs chromium, which draws the page"
    ),
]

MEASURE = """
async function measure(frame) {
  const page = frame.contentDocument, width = page.documentElement.clientWidth, beyond = [];
  // Nothing is awaited: the load event, which printers without a screen wait for, comes after the figures.
  if (!page.documentElement.dataset.drawn) beyond.push("loaded before its figures were drawn");
  for (const each of page.querySelectorAll("details")) each.open = true;
  for (const each of page.querySelectorAll("body *")) {
    const { left, right, width: own } = each.getBoundingClientRect();
    const isDrawn = own > 0 && !each.closest("svg");
    if (isDrawn && (right > width + 0.5 || left < -0.5 || each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0))
      beyond.push(each.tagName + " " + each.className + " " + each.textContent.slice(0, 40));
  }
  for (const text of page.querySelectorAll("svg text")) {
    const own = text.getBoundingClientRect(), plot = text.closest(".plot").getBoundingClientRect();
    if (own.width > 0 && (own.right > plot.right + 1 || own.left < plot.left - 1)) beyond.push("text " + text.textContent);
    if (own.width > 0 && parseFloat(getComputedStyle(text).fontSize) < 11) beyond.push("small text " + text.textContent);
  }
  for (const plot of page.querySelectorAll(".plot")) {
    const own = plot.getBoundingClientRect().width, drawn = plot.querySelector(".main-svg").getBoundingClientRect().width;
    if (Math.abs(own - drawn) > 2) beyond.push("plot of " + drawn + " in " + own + " pixels");
    const texts = [...plot.querySelectorAll("svg text")].map(each => [each, each.getBoundingClientRect()]).filter(([each, box]) => box.width > 0 && each.textContent.trim());
    texts.forEach(([one, a], place) => {
      for (const [other, b] of texts.slice(place + 1))
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
          beyond.push("over each other: " + one.textContent + ", " + other.textContent);
    });
  }
  for (const value of page.querySelectorAll(".tile b"))
    if (/^[0-9.,]+$/.test(value.textContent) && value.getBoundingClientRect().height > 45) beyond.push("broken number " + value.textContent);
  const first = page.querySelector("main > .verdict").getBoundingClientRect();
  if (first.top > 300 || !page.querySelector(".verdict").textContent.trim()) beyond.push("no verdict first");
  const saved = {};
  for (const button of page.querySelectorAll("button"))
    saved[button.dataset.figure + "." + button.dataset.save] = await frame.contentWindow.contentOf(button.dataset.figure, button.dataset.save);
  const heads = [...page.querySelectorAll("th[role=columnheader]")].filter(each => each.getBoundingClientRect().width > 0);
  return { width, beyond, saved, drawn: page.documentElement.dataset.drawn, plots: page.querySelectorAll(".main-svg").length, heads: heads.length };
}
onload = async () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) found[frame.id] = await measure(frame);
  document.getElementById("found").textContent = JSON.stringify(found);
};
"""


def looked_at(page: str, directory: Path) -> dict[str, dict[str, Any]]:
    """What a browser finds on a page at widths of 1280 and 390; asserts that it complains of nothing, as of a request."""
    frames = "".join(
        f'<iframe id="w{width}" srcdoc="{html.escape(page)}" style="width: {width}px; height: 900px; border: 0"></iframe>'
        for width in (1280, 390)
    )
    (directory / "outer.html").write_text(
        f'<!doctype html><script>{MEASURE}</script>{frames}<pre id="found"></pre>'
    )
    quiet = [
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
    ]
    done = subprocess.run(
        [
            *(
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                *quiet,
                "--virtual-time-budget=20000",
                "--enable-logging=stderr",
            ),
            *(
                f"--user-data-dir={directory / 'profile'}",
                "--dump-dom",
                f"file://{directory / 'outer.html'}",
            ),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "CONSOLE" not in done.stderr
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, flags=re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found.group(1)))


def of_trace(request) -> str:
    return request.getfixturevalue("trained_page")


def of_import(request) -> str:
    """Long names, left-out rows, and a claim with a finding of every statement."""
    directory = request.getfixturevalue("tmp_path")
    name = "device-" + "0123456789abcdef" * 6
    rows = "".join(
        f"{name}{device},{number}\n"
        for device in range(30)
        for number in (device, device + 40, device + 80)
    )
    (directory / "log.csv").write_text(f"dev,round\n{rows}")
    trace = import_log(directory / "log.csv", "dev", "round", None, directory / "t", renumber=True)
    told = {
        "min_sep": 39,
        "max_participations": 3,
        "rho": 0.1,
        "epsilon": 1.0,
        "rounds": 110,
        "timer_hours": 24.0,
    }
    claim = Claim.model_validate({"mechanism": {"kind": "tree"}, "noise_multiplier": 2.0, **told})
    return audit_page(audit_trace(trace, claim=claim, show_devices=True))


def of_study(request) -> str:
    import numpy as np

    x = np.geomspace(10.0, 2e4, 12)
    series = tuple(
        Series(
            f"blt with {count} buffers, timer {count} h, least MaxLoss for the truth; sensitivity of (b, k)",
            "line",
            x,
            1e3 / x**0.5 * count,
        )
        for count in range(1, 8)
    )
    lines = Figure(
        "lines",
        "epsilon over report goal",
        "n",
        Axis("report goal", needs_log([x])),
        Axis("epsilon", True, decimals=4),
        series,
    )
    heading = ["timer", "report goal", "mechanism", *(f"{each} figure" for each in range(11))]
    table = Table.headed(
        "Cells", [heading, *([["24 h", "6,500", "blt 2 buffers", *(["<= 123.456"] * 11)]] * 3)]
    )
    return render_study("s", "n", [lines], [table], {}, ["A."])


def of_stress(request) -> str:
    """Marks of which two have one place and two are neighbours."""
    from fedray.studies.stress.run import stress

    return stress(
        rounds=500, estimated=(100, 150), actual=(60, 90, 120), mechanisms=["identity"]
    ).page()


def of_reproduction(request) -> str:
    min_seps = [(f"otf-{n}-AA", 100.0 + n, 90.0 + n) for n in range(9)]
    rhos = [(name, 1.0, 0.9) for name, *_ in min_seps]
    figures = [agreement_figure("a", "a", "", min_seps), agreement_figure("b", "b", "", rhos)]
    table = Table("t", ("run", "min-sep"), (("otf-1-AA", "92 / 101"),))
    return Reproduced("r", {}, [table], ["n"], "v", drawn=figures).page()


def of_comparison(request) -> str:
    """Settings with two seeds, of which one has a long label."""
    from fedray.studies.compare import compare_runs
    from fedray.studies.compare_page import comparison_page

    trace = request.getfixturevalue("trace_of")([[0, 2], [1, 3], [0], [1, 2], [3]], 4)
    made = request.getfixturevalue("trained_of")
    runs = [
        made(f"{name}-{seed}", trace, {"accuracy": 0.1 * seed}, f"training.seed={seed}", *overrides)
        for name, overrides in {
            "blt": [],
            "tree": ['privacy.mechanism={kind="tree"}', "training.client.learning_rate=0.123456"],
        }.items()
        for seed in (1, 2)
    ]
    return comparison_page(compare_runs(runs, trace))


def of_mechanisms(request) -> str:
    """Two logarithmic axes, and a column that all rows share."""
    from fedray.mechanisms.figures import Mechanisms
    from fedray.runs.design import evaluate_mechanisms

    return Mechanisms(
        evaluate_mechanisms([Path("tree"), Path("bisr")], 200, 50, 3, None, 1e-10)
    ).page()


def of_training(request) -> str:
    from fedray.report.trained_page import trained_page

    return trained_page(request.getfixturevalue("trained").trained)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "plots"),
    [
        (of_trace, None),
        (of_import, 5),
        (of_study, 1),
        (of_stress, 3),
        (of_reproduction, 2),
        (of_comparison, 2),
        (of_mechanisms, 3),
        (of_training, 4),
    ],
)
def test_nothing_ends_at_the_right_edge_and_every_figure_is_drawn_and_saved(
    make, plots, request, tmp_path: Path
) -> None:
    page = make(request)
    found = looked_at(page, tmp_path)
    assert {each["width"] for each in found.values()} == {1280, 390}
    for each in found.values():
        assert not each["beyond"], "\n".join(map(repr, each["beyond"]))
        assert each["plots"] >= (plots or 8)
    wide, narrow = found["w1280"], found["w390"]
    has_cards = make not in (of_mechanisms, of_reproduction, of_training)
    assert wide["heads"] > narrow["heads"] or not has_cards
    assert wide["saved"].keys() == narrow["saved"].keys()
    for name, content in wide["saved"].items():
        assert (
            content.startswith("<svg") if name.endswith(".svg") else "," in content.splitlines()[0]
        )
