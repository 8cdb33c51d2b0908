"""Planted phrases: uniformly random words in place of some texts of some devices.

Phrases, coins and holders are a function of only the scenario and the form of its texts. So an
audit of a trained model knows from the scenario what was planted. A phrase takes the place of
texts, so that a device holds as many as without it, and a trace does not depend on phrases.
"""

from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import BoolArray, Int64Array, UInt64Array
from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_generator
from fedray.scenario import Scenario
from fedray.scenario.planted import Planted
from .source import Examples, ExampleSource, Field, Ids, Integers


@dataclass(frozen=True, slots=True)
class Phrases:
    """The candidate phrases of one table. Shapes: P phrases, T tokens."""

    table: Planted
    """The table."""
    tokens: Int64Array
    """Tokens of the phrases, with START if texts have it, [P, T]."""
    is_planted: BoolArray
    """Coin of each phrase, [P]."""
    candidates: UInt64Array
    """Devices that hold the phrase if it is planted, [P, devices]."""


def phrases_of(scenario: Scenario, tokens: Field) -> tuple[Phrases, ...]:
    """Returns the phrases of all tables `training.planted`, in order, for a field of texts."""
    tables = scenario.training.planted
    seed = scenario.training_seed
    needed = [table.phrases * table.devices for table in tables]
    # One draw for all tables, so that no device has two candidates.
    holders = stream_generator(seed, Stream.PLANTED, 0).choice(
        scenario.population.devices, sum(needed), replace=False
    )
    parts = np.split(holders.astype(np.uint64), np.cumsum(needed)[:-1])
    found = []
    for place, (table, part) in enumerate(zip(tables, parts, strict=True)):
        generator = stream_generator(seed, Stream.PLANTED, 1, place)
        is_planted = generator.random(table.phrases) < 0.5
        texts = _random_texts(generator, table.phrases, tokens)
        found.append(Phrases(table, texts, is_planted, part.reshape(table.phrases, -1)))
    return tuple(found)


def reference_phrases(scenario: Scenario, tokens: Field, count: int) -> Int64Array:
    """Returns random phrases [count, T] that no device holds, drawn as the candidates are."""
    generator = stream_generator(scenario.training_seed, Stream.PLANTED, 2)
    return _random_texts(generator, count, tokens)


def _random_texts(generator: np.random.Generator, count: int, tokens: Field) -> Int64Array:
    """Returns texts of uniformly random words, [count, T]; only START is a special token."""
    special = {tokens.start, tokens.end, tokens.padding, tokens.unknown}
    words = np.array([each for each in range(tokens.values) if each not in special], np.int64)
    texts = words[generator.integers(0, words.size, (count, *tokens.shape))]
    if tokens.start is not None:
        texts[:, 0] = tokens.start
    return texts


def with_phrases(scenario: Scenario, source: ExampleSource) -> ExampleSource:
    """Returns a source with the planted phrases of a scenario among its texts.

    Raises:
        ScenarioError: phrases are planted, but the examples are no texts.
    """
    return PlantedExamples(scenario, source) if scenario.training.planted else source


class PlantedExamples:
    """Examples of another source, some of them planted; see
    fedray.clients.data.source.ExampleSource.

    phrases: candidate phrases.
    """

    def __init__(self, scenario: Scenario, source: ExampleSource) -> None:
        tokens = source.fields.get("tokens")
        if tokens is None or not tokens.is_text or len(source.fields) > 1:
            raise ScenarioError(
                "training.planted needs data with one field `tokens`; this data has "
                f"{', '.join(source.fields)}; leave it out"
            )
        self._source = source
        self.fields = source.fields
        self.held_out_devices = source.held_out_devices
        self.optimum = source.optimum
        self.phrases = phrases_of(scenario, tokens)
        self._held = {
            device: (text, each.table.copies)
            for each in self.phrases
            for text, ids in zip(
                each.tokens[each.is_planted], each.candidates[each.is_planted], strict=True
            )
            for device in ids.tolist()
        }

    def examples_on(self, device_ids: Ids) -> Integers:
        return self._source.examples_on(device_ids)

    def examples(self, device_ids: Ids, positions: Integers) -> Examples:
        found = self._source.examples(device_ids, positions)
        for row, device in enumerate(device_ids.tolist()):
            if device in self._held:
                text, copies = self._held[device]
                found["tokens"][row, positions[row] < copies] = text
        return found
