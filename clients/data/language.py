"""A synthetic language from a seed. Text is generated on request; nothing is stored.

The language has 400 words and 8 topics. A topic ranks the words in an order of its own, with Zipf
frequencies. After a word, its one successor follows with probability 0.55 (the grammar, common to
all devices); otherwise the next word comes from the sentence's topic. A device mixes topics by
Dirichlet(0.3), so devices differ. The first of the eight words has no predecessor, so the best
accuracy is about one half (0.55 x 7 / 8, and some more from the topics).
"""

import numpy as np

from fedray.base.compiled import njit
from fedray.base.rng import Stream, draw, stream_generator, stream_key, uniform
from fedray.scenario import Scenario
from fedray.scenario.data import LanguageData
from .drawn import DrawnSource, fill_with_gammas
from .source import Examples, Field, Ids, Integers

WORDS = 400
TOPICS = 8
LENGTH = 8
SUCCESSOR_PROBABILITY = 0.55
TOPIC_CONCENTRATION = 0.3
START = WORDS
"""Token before the first word."""


class Language(DrawnSource):
    """Sentences of the synthetic language, each with START before its words."""

    def __init__(self, scenario: Scenario, table: LanguageData) -> None:
        del table
        tokens = Field(shape=(LENGTH + 1,), kind="whole", values=WORDS + 1, start=START)
        super().__init__(scenario, {"tokens": tokens}, {})
        seed = scenario.training_seed
        self._text_key = stream_key(seed, Stream.TEXT)
        generator = stream_generator(seed, Stream.LANGUAGE)
        rankings = [generator.permutation(WORDS) for _ in range(TOPICS)]
        self._ranked = np.stack(rankings).astype(np.int64)
        self._successor = generator.permutation(WORDS).astype(np.int64)
        frequency = 1.0 / np.arange(1, WORDS + 1)
        self._zipf_edges = np.cumsum(frequency / frequency.sum())

    def examples(self, device_ids: Ids, positions: Integers) -> Examples:
        tokens = _sentences(
            self._text_key, device_ids, positions, self._ranked, self._successor, self._zipf_edges
        )
        return {"tokens": tokens}


@njit(cache=True, nogil=True)
def _sentences(key, device_ids, positions, ranked, successor, zipf_edges):
    """Addresses: (device, 0, b) for the topic mixture, (device, 1 + sentence, position) for the
    words."""
    tokens = np.empty((*positions.shape, LENGTH + 1), np.int64)
    mixture = np.empty(TOPICS)
    for row in range(device_ids.size):
        device = device_ids[row]
        fill_with_gammas(mixture, TOPIC_CONCENTRATION, key, device)
        edges = np.cumsum(mixture / mixture.sum())
        for column in range(positions.shape[1]):
            sentence = positions[row, column]
            words = tokens[row, column]
            words[0] = START
            w0, _, _, _ = draw(key, device, 1 + sentence, 0)
            # The last edge may be rounded to less than 1.
            topic = min(TOPICS - 1, np.searchsorted(edges, uniform(w0)))
            for place in range(1, LENGTH + 1):
                # One draw decides between grammar and topic, the other is a word of the topic.
                w0, w1, _, _ = draw(key, device, 1 + sentence, place)
                if place > 1 and uniform(w0) < SUCCESSOR_PROBABILITY:
                    words[place] = successor[words[place - 1]]
                else:
                    rank = min(WORDS - 1, np.searchsorted(zipf_edges, uniform(w1)))
                    words[place] = ranked[topic, rank]
    return tokens
