"""Recipes of Gboard's models: the public text, and the statements that are read from comparisons."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.clients.data.language import Language
from fedray.scenarios import gboard_recipes
from fedray.scenarios.gboard_recipes import LANGUAGE, PublicText


def test_public_text_shares_half_of_the_grammar_and_no_client_with_the_population() -> None:
    scenario = fedray.Scenario.from_toml(LANGUAGE)
    public, private = PublicText(1), Language(scenario, scenario.data)
    same = public._successor == private._successor
    assert same[1::2].all()
    assert not same[::2].any()
    assert sorted(public._successor) == sorted(private._successor)
    # Words at the start of a text follow from the device only.
    ids, positions = np.arange(50, dtype=np.uint64), np.zeros((50, 1), np.int64)
    first = [each.examples(ids, positions)["tokens"][:, 0, 1] for each in (public, private)]
    assert (first[0] != first[1]).mean() > 0.8
    fedray.check_task(lambda seed: (None, PublicText(seed)))


def compared(ends: dict[str, float], rounds: dict[str, int | None] | None = None) -> Any:
    """A comparison with these accuracies after the last round, and rounds to reach."""
    groups = [SimpleNamespace(label=label) for label in ends]
    runs = [SimpleNamespace(label=label, round=each) for label, each in (rounds or {}).items()]
    return SimpleNamespace(
        groups=groups,
        reach=SimpleNamespace(runs=runs),
        mean=lambda group, _: SimpleNamespace(mean=ends[group.label]),
        to_json=dict,
        tables=lambda: [gboard_recipes.Table("Any", ("a",), ())],
        figures=list,
    )


OF_RECIPES = {"fixed": 0.48, "adaptive": 0.37, "pretrained": 0.49, "tied": 0.47}
ROUNDS = {"fixed": 99, "adaptive": None, "pretrained": 29, "tied": 109}
SMALL = {"rate 0.3": 0.2, "rate 1": 0.48, "rate 3": 0.42}


@pytest.mark.parametrize(
    ("recipes", "rounds", "large", "wrong"),
    [
        ({}, {}, {}, set()),
        ({}, {"pretrained": None}, {}, {"public text"}),
        ({"adaptive": 0.49}, {}, {}, {"adaptive clip norm"}),
        ({}, {}, {"rate 1": 0.46}, {"larger goal"}),
        ({}, {}, {"rate 3": 0.50}, {"best rate"}),
    ],
)
def test_each_statement_of_the_paper_can_fail(recipes, rounds, large, wrong) -> None:
    found = gboard_recipes._reproduced(
        compared(OF_RECIPES | recipes, ROUNDS | rounds), compared(SMALL), compared(SMALL | large)
    )
    assert found.agrees == (not wrong)
    rows = {name: (obtained, agrees) for name, _, obtained, agrees in found.shown[0].rows}
    assert {name for name, (_, agrees) in rows.items() if agrees == "NO"} == wrong
    if not wrong:
        assert rows["public text"] == ("saves 70 of 200", "yes")
        assert rows["adaptive clip norm"] == ("loses 11.0 points", "yes")
        assert rows["tied embeddings"] == ("+10 rounds", "yes")
