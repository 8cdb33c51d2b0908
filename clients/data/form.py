"""What an example of recorded data is: columns of a client made into fields of a fixed shape.

Texts (field `tokens`, [length + 1] whole numbers) are START, the words, END, and padding, cut to
`length + 1`; a model's inputs are tokens[:-1], its targets tokens[1:]. 0 is padding, 1 the unknown
word, 2 START, 3 END; words of the vocabulary have the numbers from 4 on, the most frequent first.
Texts that are whole numbers already are cut and padded with 0, and not changed otherwise.

Everything else has fields `inputs` (reals) and `targets` (whole numbers or reals).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedray.base.regular_file import read_regular_file
from fedray.clients.data.readers.reader import Column, Damaged
from fedray.clients.data.source import Field
from fedray.scenario.data import FormedData

PADDING, UNKNOWN, START, END, FIRST_WORD = range(5)
MOST_CLIENT_NUMBERS = 1 << 28
"""Most numbers in a column of one client: 1,783 images of 224 x 224 pixels in three colours."""
MOST_VOCABULARY_BYTES = 1 << 28
"""Largest vocabulary file: 2^24 words, the most that are used, of 16 letters."""
MOST_COUNTED_WORDS = 1 << 21
"""Words that are counted at once. When there are more, those that came once are forgotten, then
those that came twice, until half of them are left (the lossy counting of Manku and Motwani 2002):
a word's count is then short by what was forgotten of it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found in the data, and is kept with its index.

    kind: of the text's column or else of the targets: "words", "whole" or "real"; "none" where
        there are no targets.
    values: how many whole numbers there are: tokens or classes; 0 for reals.
    words: the vocabulary of a text in words, the most frequent first.
    shape: of an example's inputs; () for a text.
    target_shape: of an example's targets.
    """

    kind: Literal["words", "whole", "real", "none"]
    values: int
    words: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """The contents as `from_bytes` reads them: JSON."""
        parts = [self.kind, self.values, self.words, self.shape, self.target_shape]
        return json.dumps(parts).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Contents":
        """The contents whose `to_bytes` gave the `content`."""
        kind, values, words, shape, target_shape = json.loads(content)
        return cls(kind, values, tuple(words), tuple(shape), tuple(target_shape))


class Form:
    """Makes fields of columns.

    Args:
        table: the keys that say what an example is.
        contents: what was found in the data.

    words: the vocabulary of a text in words.
    """

    def __init__(self, table: FormedData, contents: Contents) -> None:
        self._table = table
        self._contents = contents
        self.words = contents.words
        self._numbers = {word: FIRST_WORD + rank for rank, word in enumerate(contents.words)}
        self.fields: Mapping[str, Field] = self._fields()

    def _fields(self) -> dict[str, Field]:
        contents = self._contents
        if self._table.tokens:
            # Of a text in numbers, nobody says which number stands for unknown words.
            unknown = UNKNOWN if contents.kind == "words" else None
            tokens = Field(
                shape=(self._table.length + 1,),
                kind="whole",
                values=contents.values,
                padding=PADDING,
                unknown=unknown,
                unit=self._table.unit,
            )
            return {"tokens": tokens}
        fields = {}
        if self._table.inputs:
            fields["inputs"] = Field(shape=contents.shape, kind="real")
        if contents.kind in ("whole", "real"):
            kind = "whole" if contents.kind == "whole" else "real"
            fields["targets"] = Field(contents.target_shape, kind, contents.values)
        return fields

    def examples(self, columns: Mapping[str, Column], count: int) -> dict[str, NDArray]:
        """The fields of all examples of a client.

        Args:
            columns: of the client, by name.
            count: how many examples it has.

        Returns:
            Arrays [count, *shape] by field.

        Raises:
            ValueError: they are not of this form.
        """
        for name, column in columns.items():
            # The index counted the examples in one column, and damaged data may differ in another.
            if len(column) != count:
                raise ValueError(f"column {name!r} has {len(column)} of {count} examples")
        table = self._table
        if table.tokens:
            tokens = self._tokens(columns[table.tokens])
            return {"tokens": tokens}
        found: dict[str, NDArray] = {}
        if table.inputs:
            inputs = inputs_of(columns[table.inputs], table)
            found["inputs"] = _of_shape(inputs, self._contents.shape, table.inputs)
        if "targets" in self.fields:
            targets = targets_of(columns[table.targets], table.targets)
            found["targets"] = self._checked_targets(targets)
        return found

    def _checked_targets(self, targets: NDArray) -> NDArray:
        contents = self._contents
        name = self._table.targets
        targets = _of_shape(targets, contents.target_shape, name)
        if contents.kind == "real":
            return targets.astype(np.float32)
        if targets.dtype.kind == "f":
            raise ValueError(f"column {name!r} has reals among its whole numbers")
        _check_values(targets, contents.values, name)
        return targets

    def _tokens(self, column: Column) -> NDArray[np.int64]:
        """The field `tokens` of N texts, [N, length + 1]."""
        size = self._table.length + 1
        # Zeros are PADDING.
        tokens = np.zeros((len(column), size), np.int64)
        for row, text in enumerate(column):
            if self._contents.kind == "words":
                # A text of `length` words or more has no place left for END, and is cut before it.
                found = self._numbered(text)[:size]
            else:
                found = whole_text(text, self._table.tokens)[:size]
            tokens[row, : found.size] = found
        _check_values(tokens, self._contents.values, self._table.tokens)
        return tokens

    def _numbered(self, text: Any) -> NDArray[np.int64]:
        """START, the numbers of at most `length` words of a text, and END."""
        words = words_of(text, self._table)[: self._table.length]
        numbers = [self._numbers.get(word, UNKNOWN) for word in words]
        return np.array([START, *numbers, END], np.int64)


class Counting:
    """Finds what the data has: its kind and shape from the first examples, and, if the table does
    not say them, its words and the number of its values from all of them.

    Args:
        table: the keys that say what an example is.
    """

    def __init__(self, table: FormedData) -> None:
        self._table = table
        self._kind: Literal["words", "whole", "real", "none"] | None = None
        self._shape: tuple[int, ...] = ()
        self._target_shape: tuple[int, ...] = ()
        self._largest = -1
        self._words: Counter[str] = Counter()

    @property
    def needs_more(self) -> bool:
        """Whether other clients have to be read too."""
        if self._kind is None:
            return True
        if self._kind == "words":
            return not self._table.vocabulary_file
        return self._kind == "whole" and not self._table.values

    def add(self, columns: Mapping[str, Column], is_trained_on: bool) -> None:
        """Takes one client with examples into account.

        Args:
            columns: of the client.
            is_trained_on: whether its words count for the vocabulary.

        Raises:
            ValueError: it cannot be what the table says.
        """
        table = self._table
        if table.tokens:
            self._add_texts(columns[table.tokens], is_trained_on)
            return
        # The first client says kind and shapes; `Form.examples` holds the others to them.
        if self._kind is None and table.inputs:
            self._shape = inputs_of(columns[table.inputs], table).shape[1:]
        if not table.targets:
            self._kind = "none"
            return
        targets = targets_of(columns[table.targets], table.targets)
        if self._kind is None:
            self._target_shape = targets.shape[1:]
            self._kind = "real" if targets.dtype.kind == "f" else "whole"
        if self._kind == "whole":
            if targets.dtype.kind == "f":
                raise ValueError(f"column {table.targets!r} has reals among its whole numbers")
            self._largest = max(self._largest, int(targets.max(initial=-1)))

    def contents(self) -> Contents:
        """What was found in all clients that were added.

        Raises:
            InputError: the vocabulary file cannot be used.
            Damaged: there was no example.
        """
        if self._kind is None:
            raise Damaged("no client has an example")
        if self._kind == "words":
            words = self._vocabulary()
            return Contents("words", FIRST_WORD + len(words), words)
        values = 0
        if self._kind == "whole":
            # The numbers begin at 0, so that there is one more than the largest says.
            values = self._table.values or self._largest + 1
        return Contents(self._kind, values, (), self._shape, self._target_shape)

    def _add_texts(self, texts: Column, is_trained_on: bool) -> None:
        if self._kind is None:
            self._kind = "words" if _is_words(texts[0]) else "whole"
        if self._kind == "words":
            # A vocabulary that knew the words of held-out clients would flatter their evaluation.
            if is_trained_on and self.needs_more:
                words = (words_of(text, self._table) for text in texts)
                self._words.update(chain.from_iterable(words))
                _forget_rare(self._words)
            return
        for text in texts:
            found = whole_text(text, self._table.tokens)
            self._largest = max(self._largest, int(found.max(initial=-1)))

    def _vocabulary(self) -> tuple[str, ...]:
        if self._table.vocabulary_file:
            path = self._table.checked_path("vocabulary_file")
            return read_vocabulary(path)[: self._table.vocabulary]

        def most_frequent_first(entry: tuple[str, int]) -> tuple[int, str]:
            word, count = entry
            # Words that are as frequent stand in order of their letters: else their order would be
            # that in which clients were read.
            return -count, word

        frequent = sorted(self._words.items(), key=most_frequent_first)
        return tuple(word for word, _ in frequent[: self._table.vocabulary])


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """The words of a file with a word a line, the most frequent first.

    Args:
        path: the file.

    Raises:
        Damaged: it cannot be read, or has a word twice.
    """
    try:
        content = read_regular_file(path, MOST_VOCABULARY_BYTES)
        lines = content.decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(f"vocabulary_file={str(path)!r} cannot be read ({error})") from None
    # Files of Windows end their lines with \r\n.
    stripped = [line.rstrip("\r") for line in lines]
    words = tuple(line for line in stripped if line)
    for word, times in Counter(words).most_common(1):
        if times > 1:
            raise Damaged(f"vocabulary_file={str(path)!r} has {word!r} twice")
    if not words:
        raise Damaged(f"vocabulary_file={str(path)!r} has no words")
    return words


def words_of(text: Any, table: FormedData) -> Sequence[str]:
    """The words of one text, which is a str or in words already.

    Args:
        text: the text.
        table: says what a word is.

    Raises:
        ValueError: it is no text.
    """
    if not isinstance(text, str):
        between = " " if table.unit == "word" else ""
        try:
            # Words are joined, so that a text in words and the same text as a string do not differ.
            text = between.join(text)
        except TypeError:
            raise ValueError(
                f"column {table.tokens!r} has a text that is not made of words"
            ) from None
    return text.split() if table.unit == "word" else list(text)


def whole_text(text: Any, name: str) -> NDArray[np.int64]:
    """A text of whole numbers, as an array.

    Args:
        text: the numbers.
        name: of the column, for messages.

    Raises:
        ValueError: it is something else.
    """
    found = np.asarray(None if _has_text(text) else text)
    # An empty list becomes an array of reals, and is a text all the same.
    is_whole = not found.size or found.dtype.kind in "biu"
    if found.ndim != 1 or not is_whole:
        raise ValueError(f"column {name!r} has a text that is no list of whole numbers")
    return _as_int64(found, name)


def inputs_of(column: Column, table: FormedData) -> NDArray[np.float32]:
    """The inputs of N examples, scaled and in the shape that the table says.

    Args:
        column: of numbers.
        table: says scale and shape.

    Returns:
        [N, *shape].

    Raises:
        ValueError: they are no finite numbers of one shape.
    """
    found = _numbers(column, table.inputs).astype(np.float64)
    # What overflows float32 becomes infinite, and is refused as that.
    with np.errstate(over="ignore"):
        scaled = (table.scale * found).astype(np.float32)
    if not np.isfinite(scaled).all():
        raise ValueError(f"column {table.inputs!r} has values that are not finite")
    if table.shape is None:
        return scaled
    own_shape = scaled.shape[1:]
    if int(np.prod(own_shape)) != int(np.prod(table.shape)):
        raise ValueError(
            f"column {table.inputs!r} has shape {own_shape}, which cannot be given the "
            f"shape {table.shape}"
        )
    return scaled.reshape(-1, *table.shape)


def targets_of(column: Column, name: str) -> NDArray:
    """The targets of N examples.

    Args:
        column: of numbers.
        name: of the column, for messages.

    Returns:
        [N, ...]: int64, or float32 if they are reals.

    Raises:
        ValueError: they are no finite numbers of one shape, or below 0.
    """
    found = _numbers(column, name)
    if found.dtype.kind == "f":
        with np.errstate(over="ignore"):
            reals = found.astype(np.float32)
        if not np.isfinite(reals).all():
            raise ValueError(f"column {name!r} has values that are not finite")
        return reals
    return _as_int64(found, name)


def _numbers(column: Column, name: str) -> NDArray:
    try:
        found = np.asarray(None if _has_text(column) else column)
    except ValueError:
        raise ValueError(f"column {name!r} has examples of different shapes") from None
    if found.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} has something that is no number")
    if found.size > MOST_CLIENT_NUMBERS:
        raise ValueError(f"column {name!r} has more than {MOST_CLIENT_NUMBERS:,} numbers")
    return found


def _has_text(values: Any) -> bool:
    """Whether nested lists have texts in them. numpy would give each value the room of the longest
    text, which a small file can make larger than the memory."""
    if not isinstance(values, list | tuple):
        return isinstance(values, str | bytes)
    kinds = set(map(type, values))
    nested = (each for each in values if isinstance(each, list | tuple))
    return bool(kinds & {str, bytes}) or (
        bool(kinds & {list, tuple}) and any(map(_has_text, nested))
    )


def _as_int64(found: NDArray, name: str) -> NDArray[np.int64]:
    is_outside = found.size and (found.min() < 0 or found.max() >= 2**40)
    if is_outside:
        raise ValueError(f"column {name!r} has a whole number outside 0 to 2^40")
    return found.astype(np.int64)


def _of_shape(found: NDArray, shape: tuple[int, ...], name: str) -> NDArray:
    if found.shape[1:] != shape and found.shape[0]:
        raise ValueError(
            f"column {name!r} has shape {found.shape[1:]} where other clients have {shape}"
        )
    # A client without examples has no shape of its own, and is given that of the others.
    return found.reshape(-1, *shape)


def _check_values(found: NDArray[np.int64], values: int, name: str) -> None:
    if found.size and found.max() >= values:
        raise ValueError(
            f"column {name!r} has {int(found.max())}, and data.values says {values} values: 0 to "
            f"{values - 1}"
        )


def _is_words(text: Any) -> bool:
    if isinstance(text, str):
        return True
    # An empty text says nothing of its kind, and does not count as words.
    return isinstance(text, Iterable) and any(isinstance(word, str) for word in text)


def _forget_rare(words: Counter[str]) -> None:
    if len(words) <= MOST_COUNTED_WORDS:
        return
    times = 1
    while len(words) > MOST_COUNTED_WORDS // 2:
        rare = [word for word, count in words.items() if count <= times]
        for word in rare:
            del words[word]
        times += 1
