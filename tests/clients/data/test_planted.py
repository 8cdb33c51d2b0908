"""Planted phrases: a source with them keeps the contract, and who holds which phrase follows from the scenario."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_contract import CHECKS
from scipy.stats import binom, chi2

from fedray.base.errors import ScenarioError
from fedray.clients.data.factory import source_of
from fedray.clients.data.form import END, PADDING, START, UNKNOWN
from fedray.clients.data.language import START as LANGUAGE_START
from fedray.clients.data.language import WORDS
from fedray.clients.data.planted import PlantedExamples, reference_phrases, with_phrases
from fedray.clients.data.source import FIRST_HELD_OUT
from fedray.clients.trainer import LocalTrainer

PLANTED = [{"phrases": 30, "devices": 3, "copies": 4}, {"phrases": 200, "copies": 1000}]
LANGUAGE = {"kind": "language"}


@pytest.fixture
def texts(tmp_path) -> dict:
    """A Parquet file of texts of 12 clients."""
    generator = np.random.default_rng(0)
    clients = np.repeat(np.arange(12), 9)
    words = ["".join(generator.choice(list("abcde"), 3)) for _ in range(40)]
    lines = [" ".join(generator.choice(words, generator.integers(1, 9))) for _ in clients]
    table = {"client": [f"c{each}" for each in clients], "text": lines}
    pq.write_table(pa.table(table), tmp_path / "texts.parquet")
    return {"kind": "parquet", "file": "texts.parquet", "tokens": "text", "length": 6}


@pytest.fixture(params=["language", "parquet"])
def data(request) -> dict:
    return LANGUAGE if request.param == "language" else request.getfixturevalue("texts")


@pytest.fixture
def scenario(scenario_of, data):
    return scenario_of(data, training={"enabled": False, "planted": PLANTED})


@pytest.mark.compiles
@pytest.mark.parametrize("check", CHECKS)
def test_a_source_with_phrases_keeps_the_contract(check, scenario) -> None:
    check(lambda: with_phrases(scenario, source_of(scenario)))


def test_a_scenario_without_phrases_has_its_source_unchanged(scenario_of) -> None:
    scenario = scenario_of(LANGUAGE)
    source = source_of(scenario)
    assert with_phrases(scenario, source) is source
    assert "planted" not in scenario.to_tables()["training"]


def test_the_first_texts_of_holders_are_their_phrase_and_no_others(scenario) -> None:
    source = source_of(scenario)
    planted = with_phrases(scenario, source)
    assert isinstance(planted, PlantedExamples)
    everyone = np.arange(scenario.population.devices, dtype=np.uint64)
    held = source.examples_on(everyone)
    assert np.array_equal(planted.examples_on(everyone), held)
    # The slow twin: device by device.
    phrase_of = {
        int(device): (each.tokens[row], each.table.copies)
        for each in planted.phrases
        for row in np.flatnonzero(each.is_planted)
        for device in each.candidates[row]
    }
    assert len(phrase_of) == sum(each.candidates[each.is_planted].size for each in planted.phrases)
    for device, count in zip(everyone[:400], held[:400], strict=True):
        positions = np.arange(min(count, 12))[None, :]
        expected = source.examples(device[None], positions)["tokens"].copy()
        if int(device) in phrase_of:
            text, copies = phrase_of[int(device)]
            expected[0, :copies] = text
        found = planted.examples(device[None], positions)["tokens"]
        assert np.array_equal(found, expected)
    # Nothing is planted in data that models are evaluated on.
    ids, places = FIRST_HELD_OUT + np.arange(1, dtype=np.uint64), np.zeros((1, 1), np.int64)
    before, after = (each.examples(ids, places)["tokens"] for each in (source, planted))
    assert np.array_equal(before, after)


def test_phrases_are_uniform_words_after_the_start(scenario, data) -> None:
    source = source_of(scenario)
    field = source.fields["tokens"]
    texts = reference_phrases(scenario, field, 4000)
    is_language = data["kind"] == "language"
    assert (texts[:, 0] == (LANGUAGE_START if is_language else START)).all()
    special = {LANGUAGE_START} if is_language else {PADDING, UNKNOWN, START, END}
    assert not special & set(np.unique(texts[:, 1:]).tolist())
    # Chi-square of the words: below 1e-4 with that probability.
    counts = np.bincount(texts[:, 1:].ravel(), minlength=field.values)
    counts = np.delete(counts, sorted(special))
    expected = counts.sum() / counts.size
    assert counts.size == (WORDS if is_language else field.values - 4)
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), counts.size - 1) > 1e-4


def test_coins_are_fair_and_candidates_differ(scenario_of) -> None:
    """Coins of 40 seeds, 9,200 in all: beyond 4.5 standard deviations with a probability below 1e-5."""
    heads = 0
    for seed in range(40):
        scenario = scenario_of(
            LANGUAGE, training={"enabled": False, "planted": PLANTED, "seed": seed}
        )
        planted = with_phrases(scenario, source_of(scenario))
        assert isinstance(planted, PlantedExamples)
        holders = np.concatenate([each.candidates.ravel() for each in planted.phrases])
        assert np.unique(holders).size == holders.size == 30 * 3 + 200
        assert holders.max() < 1000
        heads += sum(int(each.is_planted.sum()) for each in planted.phrases)
    assert binom.cdf(heads, 40 * 230, 0.5) == pytest.approx(0.5, abs=0.5 - 3e-6)


def test_phrases_are_refused_where_they_have_no_place(scenario_of) -> None:
    with pytest.raises(ScenarioError, match=r"need 2000 devices, and population.devices=1000"):
        scenario_of(LANGUAGE, training={"enabled": False, "planted": [{"phrases": 2000}]})
    scenario = scenario_of(
        {"kind": "points"},
        training={"task": "quadratic", "planted": [{"phrases": 2}], "cohort_sample": 10},
        participation={"timer_hours": 1.0},
    )
    with pytest.raises(ScenarioError, match=r"training.planted needs data with one field `tokens`"):
        LocalTrainer(scenario)
