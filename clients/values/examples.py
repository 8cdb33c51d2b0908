"""Tokens or classes of the examples that devices train on."""

import numpy as np

from fedray.base.arrays import UInt64Array
from fedray.base.errors import InputError
from fedray.mechanisms.questions.question import Items
from fedray.scenario import Scenario
from fedray.scenario.analytics import ExampleValues
from fedray.scenario.data import LanguageData
from ..data.factory import source_of
from ..data.form import FIRST_WORD
from ..data.source import DamagedExamples
from .values import occurrences


class ExampleItems:
    """See `fedray.scenario.analytics.ExampleValues`. In a text of words, key n is the n-th most
    frequent word of the data; no token without a word is an item.

    Raises:
        InputError: the data has neither tokens nor classes, or its words were counted.
    """

    def __init__(self, scenario: Scenario, table: ExampleValues) -> None:
        self._source = source_of(scenario)
        self._most = table.most_examples
        fields = {name: each for name, each in self._source.fields.items() if each.kind == "whole"}
        self._field = next((name for name in ("tokens", "targets") if name in fields), "")
        if not self._field:
            kind = scenario.data.kind
            rule = "'examples' needs data with tokens or classes"
            raise InputError.of("data.kind", kind, rule, "take other values, or other data")
        self._words: tuple[str, ...] = getattr(self._source, "words", ())
        if self._words and not getattr(scenario.data, "vocabulary_file", ""):
            rule = "must name the words: counted ones reveal the data of all devices without noise"
            raise InputError.of("data.vocabulary_file", "", rule, "set it to a list of words")
        self._first = FIRST_WORD if self._words else 0
        # The synthetic language puts its last token before every sentence.
        is_language = isinstance(scenario.data, LanguageData)
        self._end = fields[self._field].values - is_language
        self._padding = fields[self._field].padding

    def on(self, device_ids: UInt64Array) -> Items:
        read = np.minimum(self._source.examples_on(device_ids), self._most)
        found: list[np.ndarray] = [np.empty(0, np.int64)] * device_ids.size
        # Devices with the same number of examples are read together.
        for number in np.unique(read[read > 0]).tolist():
            rows = np.flatnonzero(read == number)
            positions = np.tile(np.arange(number), (rows.size, 1))
            tokens = self._tokens(device_ids[rows], positions)
            for row, own in zip(rows.tolist(), tokens.reshape(rows.size, -1), strict=True):
                found[row] = self._kept(own)
        counts = np.array([each.size for each in found], np.int64)
        return occurrences(counts, np.concatenate([*found, np.empty(0, np.int64)]))

    def label(self, key: int) -> str:
        return self._words[key] if self._words else str(key)

    def _tokens(self, device_ids: UInt64Array, positions: np.ndarray) -> np.ndarray:
        try:
            return self._source.examples(device_ids, positions)[self._field]
        except DamagedExamples as error:
            raise InputError(f"data: {error}; correct the data") from None

    def _kept(self, tokens: np.ndarray) -> np.ndarray:
        is_item = (tokens >= self._first) & (tokens < self._end) & (tokens != self._padding)
        return tokens[is_item] - self._first
