"""Every reproduction is run as an example, and the command runs one that it has never seen."""

import importlib
import inspect
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_schema import found_keys
from json_documents import CELLS, DOCUMENTS
from lawful_runs import lawful
from small_phones import written_phones
from small_roles import written_roles
from small_study import SMALL_REQUEST
from small_trust import SMALL_TRUST

import fedray.scenarios
from fedray.base.part_done import Announcement, PartDone
from fedray.commands import reproduce
from fedray.report.files import drawn_figure, saved
from fedray.report.plotly_json import plotly_figure
from fedray.report.table import Table
from fedray.runtime.placement import Placement
from fedray.scenarios import flash, gboard, gboard_recipes
from fedray.scenarios.gboard import Compared, ReproducedRun
from fedray.scenarios.gboard_rows import later_runs, published_runs
from fedray.scenarios.reproduction import (
    Option,
    Reproduced,
    Reproduction,
    Request,
    agreement_figure,
    in_steps,
)
from fedray.studies import reach_and_pace

HERE = Placement(backend="in-process")
SMALL = ["population.devices=8300", "rounds.report_goal=65", "rounds.count=30"]
EXAMPLES: dict[str, dict[str, Any]] = {
    "amplified": {"cheapest": 1},
    "amplified-errors": {},
    "blt": {"cheapest": 2},
    "blt-cost": {},
    "clip-schedule": {"norms": "2,0.5", **SMALL_REQUEST},
    "coverage": {"hours": "6,24", "placement": HERE},
    "dp-lstm": {"cheapest": 3},
    "flash": {"data": lambda folder: written_phones(folder, phones=120)},
    "gboard": {"rows": "nwp-pt-PT", "overrides": SMALL, "placement": HERE},
    "gboard-predict": {"rows": "en-GB", "placement": HERE},
    "gboard-privacy": {"rows": "en-GB"},
    "gboard-recipes": {"placement": HERE},
    "learning": SMALL_REQUEST,
    "shakespeare": {
        "data": written_roles,
        "rounds": 2,
        "optimizers": "fedadam",
        "overrides": ["training.task.hidden=8"],
        "placement": HERE,
    },
    "signal-to-noise": {"sizes": "4,12", **SMALL_REQUEST},
    "trust": {"seeds": 2, "overrides": SMALL_TRUST, "placement": HERE},
}
"""Arguments of a quick run of each reproduction."""
LEARNS = (
    *("clip-schedule", "gboard-recipes", "learning", "shakespeare", "signal-to-noise", "trust"),
)
"""Reproductions whose statements need trained models: a few rounds teach them nothing."""
TINY_RECIPES = (
    "training.task={kind='keyboard_lstm',hidden=8,embedding=8}",
    "privacy.mechanism={kind='tree',restarts=[1]}",
    "rounds.count=3",
    "population.devices=3000",
    "training.evaluate_every=1",
    "training.evaluation_devices=16",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", reproduce.reproductions())
def test_a_reproduction_has_tables_figures_a_verdict_and_json(
    name: str, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reach_and_pace, "simulated_limits", lawful)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The slow fits are those of test_flash.py.
    monkeypatch.setattr(flash, "FITTED", flash.FITTED[-1:])
    monkeypatch.setattr(gboard_recipes, "KEYS", TINY_RECIPES)
    monkeypatch.setattr(gboard_recipes, "GOAL", 60)
    monkeypatch.setattr(gboard_recipes, "LARGE", 20)
    assert name in EXAMPLES, f"{name} has no quick run: add one to EXAMPLES"
    given = dict(EXAMPLES[name])
    if "data" in given:
        given["data"] = given["data"](tmp_path)
    for result in reproduce.reproductions()[name].results(**given):
        # The tests of the modules have the statements on models.
        assert result.agrees or name in LEARNS
        assert result.verdict.endswith((".", "%"))
        assert result.tables()
        for table in result.tables():
            assert {len(row) for row in table.rows} == {len(table.columns)}
        assert bool(result.figures()) == reproduce.reproductions()[name].has_figures
        document = json.loads(json.dumps(result.document, allow_nan=False))
        of_its_own = DOCUMENTS.get(f"fedray reproduce {name}", DOCUMENTS[CELLS])
        assert found_keys(document, *of_its_own.types)
        assert result.title in repr(result)


RUN_BY_THE_COMMAND = {"out", "figures", "as_json", "overrides", "place"}
GALLERY = Path(fedray.scenarios.__path__[0]) / "README.md"


@pytest.mark.parametrize("name", reproduce.reproductions())
def test_the_table_of_options_is_that_of_the_function(name: str) -> None:
    """A misspelt row would fail only when the command calls the function."""
    each = reproduce.reproductions()[name]
    request, *own = inspect.signature(each.run, eval_str=True).parameters.values()
    assert request.annotation is Request
    assert {each.name: each.annotation for each in own} == {
        option.name: option.kind for option in each.options
    }
    assert all(option.help.endswith(".") for option in each.options)
    assert not {option.name for option in each.options} & RUN_BY_THE_COMMAND


@pytest.mark.parametrize("name", reproduce.reproductions())
def test_the_gallery_names_the_source_of_a_reproduction(name: str) -> None:
    each = reproduce.reproductions()[name]
    module = f"fedray.scenarios.{name.replace('-', '_')}"
    assert importlib.import_module(module).REPRODUCTION is each
    (row,) = [
        line for line in GALLERY.read_text().splitlines() if f"`fedray reproduce {name}`" in line
    ]
    _, source, _, time, *_ = row.split(" | ")
    assert (source, time) == (each.source, each.time)


def test_steps_are_named_and_the_cheap_ones_come_first_with_the_share_of_all() -> None:
    lines: list[Any] = []
    costs = {"large": 6.0, "small": 1.0, "medium": 3.0}
    request = Request(on_progress=lines.append)
    for name, tell in in_steps(request, [*costs], lambda each: each, costs.__getitem__):
        tell(0.5)
        assert lines[-1].endswith(name)
    steps = [each for each in lines if isinstance(each, Announcement)]
    assert steps == ["step 1 of 3, small", "step 2 of 3, medium", "step 3 of 3, large"]
    shares = [10 * each.share for each in lines if isinstance(each, PartDone)]
    assert shares == pytest.approx([0, 0.5, 1, 2.5, 4, 7, 10], abs=1e-4)
    # A log prints the first and the last share of all besides the steps.
    assert [each for each in shares if each in (0, 10)] == [10]


def test_a_step_keeps_its_cost_though_it_costs_nothing_once_it_is_done() -> None:
    lines: list[Any] = []
    costs = {"a": 2.0, "b": 2.0}
    request = Request(on_progress=lines.append)
    for name, _ in in_steps(request, [*costs], lambda each: each, costs.__getitem__):
        costs[name] = 0.0
    shares = [each.share for each in lines if isinstance(each, PartDone)]
    assert shares == pytest.approx([0, 0.5, 1], abs=1e-4)


def test_rows_are_simulated_by_their_cost_and_shown_in_the_order_of_the_paper(monkeypatch) -> None:
    simulated = []
    empty = Compared(None, None)
    figures = (empty, empty, empty, empty, 0.1, 2.0, (9.0, 12.0), "completed", "", 1.0)

    def made(published: Any, *_: Any) -> ReproducedRun:
        simulated.append(published)
        return ReproducedRun(published.name, 1.0, False, *figures)

    monkeypatch.setattr(gboard, "_reproduce", made)
    names = None
    for result in gboard.REPRODUCTION.results():
        names = [row[0] for row in result.tables()[0].rows]
    costs = [each.rounds * each.report_goal for each in simulated]
    assert costs == sorted(costs)
    assert len(simulated) == 18
    assert names == [each.name for each in (*published_runs(), *later_runs())]


def test_an_option_that_a_reproduction_lacks_is_an_error() -> None:
    with pytest.raises(TypeError, match="seeds"):
        next(reproduce.reproductions()["gboard-privacy"].results(seeds=3))


def _twice(request: Request, *, factor: float) -> Any:
    """Two results, of which the second counts."""
    for printed in (1.0, 4.0):
        points = [("x", printed, printed * factor)]
        yield Reproduced(
            title="Twice two",
            document={"printed": printed, "out": str(request.out)},
            shown=[Table("Values", ("run", "value"), (("x", f"{printed * factor:g}"),))],
            notes=["A note."],
            verdict=f"x is {factor:g} times the printed value.",
            agrees=factor == 1.0,
            drawn=[agreement_figure("x", "x", "", points)],
        )


@pytest.fixture
def own(monkeypatch, fedray_command) -> Any:
    """The command with one more reproduction."""
    known = {
        **reproduce.reproductions(),
        "own": Reproduction(
            "own",
            "Twice two is four.",
            "Nobody",
            "1 s",
            _twice,
            (Option("factor", float, 1.0, "Factor of the printed value."),),
            has_figures=True,
        ),
    }
    monkeypatch.setattr(reproduce, "reproductions", lambda: known)
    return lambda *arguments: fedray_command("reproduce", *arguments)


def test_the_command_lists_runs_and_writes_a_reproduction_of_its_own_options(
    own, script, tmp_path: Path
) -> None:
    code, out, _ = own()
    assert code == 0
    assert "own 1 s Twice two is four." in [" ".join(each.split()) for each in out.splitlines()]
    assert "Twice two is four." in own("--help")[1]
    assert "--factor" in own("own", "--help")[1]
    code, out, _ = own("own", "--out", str(tmp_path / "o"), "--figures", str(tmp_path / "f"))
    assert code == 0
    assert out.count("x is 1 times the printed value.") == 1
    assert json.loads((tmp_path / "o" / "results.json").read_text())["printed"] == 4.0
    page = (tmp_path / "o" / "report.html").read_text()
    assert script(page, "results-data")["printed"] == 4.0
    assert "x is 1 times the printed value." in page
    assert (tmp_path / "f" / "x.csv").exists()
    code, out, _ = own("own", "--json")
    assert json.loads(out) == {"printed": 4.0, "out": "None"}


def test_a_contradicted_publication_shows_in_the_exit_code(own) -> None:
    code, out, _ = own("own", "--factor", "2")
    assert code == 1
    assert "x is 2 times the printed value." in out


def test_an_unknown_name_and_an_output_that_exists_are_refused(own, tmp_path: Path) -> None:
    for given, message in (
        (("owm",), "unknown reproduction 'owm'; did you mean 'own'?"),
        (("chess",), "unknown reproduction 'chess'; choose from amplified, amplified-errors, blt,"),
        (("own", "--out", str(tmp_path)), "exists already"),
        (("own", "--seeds", "3"), "No such option: --seeds"),
        (("own", "--place", "shards=2"), "No such option: --place; own has no runs to place"),
        (("own", "--factor", "much"), "--factor='much' must be a number"),
    ):
        code, out, err = own(*given)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_names_of_points_have_room_at_the_ends_of_a_phone_s_plot() -> None:
    """A name takes an eighth of the width there, on either side of its point."""
    runs = [("nwp-en-GB", value, value) for value in (50.0, 500.0)]
    agreement = agreement_figure("n", "t", "", runs).series[0]
    first, last = np.log(agreement.x)
    assert (np.log(50.0) - first) / (last - first) >= 0.125
    assert (last - np.log(500.0)) / (last - first) >= 0.125


@pytest.mark.slow
def test_figures_without_data_are_drawn_empty() -> None:
    figure = agreement_figure("n", "t", "", [("a", None, 1.0)])
    assert plotly_figure(figure)["data"][1]["x"] == []
    ET.fromstring(saved(drawn_figure(figure), "svg").decode())
