"""The form of recorded examples: columns of a client become fields of a fixed shape.

Texts (field `tokens`, [length + 1] whole numbers) are START, the words, END, and padding, cut to
`length + 1`; a model's inputs are tokens[:-1], its targets tokens[1:]. 0 is padding, 1 the unknown
word, 2 START, 3 END; words of the vocabulary have the numbers from 4 on, the most frequent first.
Texts that are whole numbers already are cut and padded with 0, and not changed otherwise.

Other data has fields `inputs` (reals) and `targets` (whole numbers or reals).
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float32Array
from fedray.base.parsing import decode_text
from fedray.base.regular_file import read_regular_file
from fedray.scenario.data import FormedData
from .readers.reader import Column, Damaged
from .source import Examples, Field, Fields, Integers

PADDING, UNKNOWN, START, END, FIRST_WORD = range(5)
MOST_CLIENT_NUMBERS = 1 << 28
"""Largest number of numbers in a column of one client: 1,783 images of 224 x 224 pixels in three
colours."""
MOST_VOCABULARY_BYTES = 1 << 28
"""Largest vocabulary file: 2^24 words, the most that are used, of 16 letters."""
MOST_COUNTED_WORDS = 1 << 21
"""Largest number of words that are counted at once. Beyond it, words with count 1 are dropped, then
words with count 2, until half of them are left (the lossy counting of Manku and Motwani 2002): a
word's count then lacks its dropped occurrences."""
_Kind = Literal["words", "whole", "real", "none"]


@dataclass(frozen=True, slots=True)
class Contents:
    """Properties of the data that are cached with its index."""

    kind: _Kind
    """Type of the text's column or else of the targets; "none" without targets."""
    values: int
    """Number of possible whole numbers: tokens or classes; 0 for reals."""
    words: tuple[str, ...] = ()
    """Vocabulary of a text in words, the most frequent first."""
    shape: tuple[int, ...] = ()
    """Shape of an example's inputs; () for a text."""
    target_shape: tuple[int, ...] = ()
    """Shape of an example's targets."""

    def to_bytes(self) -> bytes:
        """Returns the contents as JSON."""
        parts = [self.kind, self.values, self.words, self.shape, self.target_shape]
        return json.dumps(parts).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Contents":
        """Returns the contents whose `to_bytes` is the content."""
        kind, values, *parts = json.loads(content)
        return cls(kind, values, *map(tuple, parts))


class Form:
    """Converts columns to fields.

    Args:
        table: keys that describe an example.
        contents: properties of the data.

    words: vocabulary of a text in words.
    """

    def __init__(self, table: FormedData, contents: Contents) -> None:
        self._table = table
        self._contents = contents
        self.words = contents.words
        self._numbers = {word: FIRST_WORD + rank for rank, word in enumerate(contents.words)}
        self.fields: Fields = self._fields()

    def _fields(self) -> dict[str, Field]:
        contents = self._contents
        if self._table.tokens:
            # In a text of numbers, the numbers of special tokens are not known.
            is_of_words = contents.kind == "words"
            tokens = Field(
                shape=(self._table.length + 1,),
                kind="whole",
                values=contents.values,
                padding=PADDING,
                unknown=UNKNOWN if is_of_words else None,
                unit=self._table.unit,
                start=START if is_of_words else None,
                end=END if is_of_words else None,
            )
            return {"tokens": tokens}
        fields = {}
        if self._table.inputs:
            fields["inputs"] = Field(shape=contents.shape, kind="real")
        if contents.kind in ("whole", "real"):
            kind = "whole" if contents.kind == "whole" else "real"
            fields["targets"] = Field(contents.target_shape, kind, contents.values)
        return fields

    def examples(self, columns: Mapping[str, Column], count: int) -> Examples:
        """Returns the fields of all examples of a client, [count, *shape].

        Args:
            columns: columns of the client, by name.
            count: number of examples.

        Raises:
            ValueError: the columns do not have this form.
        """
        for name, column in columns.items():
            # The index counted one column; in damaged data another may differ.
            if len(column) != count:
                raise ValueError(f"column {name!r} has {len(column)} of {count} examples")
        table = self._table
        if table.tokens:
            return {"tokens": self._tokens(columns[table.tokens])}
        found: Examples = {}
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
        _check_whole(targets, name)
        _check_values(targets, contents.values, name)
        return targets

    def _tokens(self, column: Column) -> Integers:
        """Returns the field `tokens` of N texts, [N, length + 1]."""
        size = self._table.length + 1
        # Zeros are PADDING.
        tokens = np.zeros((len(column), size), np.int64)
        for row, text in enumerate(column):
            if self._contents.kind == "words":
                # A text of `length` words or more leaves no room for END.
                found = self._numbered(text)[:size]
            else:
                found = whole_text(text, self._table.tokens)[:size]
            tokens[row, : found.size] = found
        _check_values(tokens, self._contents.values, self._table.tokens)
        return tokens

    def _numbered(self, text: Any) -> Integers:
        """Returns START, the numbers of at most `length` words of a text, and END."""
        words = words_of(text, self._table)[: self._table.length]
        numbers = [self._numbers.get(word, UNKNOWN) for word in words]
        return np.array([START, *numbers, END], np.int64)


class Counting:
    """Determines the contents of data: kind and shape from the first examples, and words or the
    number of values from all of them, unless the table has them.

    Args:
        table: keys that describe an example.
    """

    def __init__(self, table: FormedData) -> None:
        self._table = table
        self._kind: _Kind | None = None
        self._shape: tuple[int, ...] = ()
        self._target_shape: tuple[int, ...] = ()
        self._largest = -1
        self._words: Counter[str] = Counter()

    @property
    def needs_more(self) -> bool:
        """Whether further clients must be read."""
        if self._kind is None:
            return True
        if self._kind == "words":
            return not self._table.vocabulary_file
        return self._kind == "whole" and not self._table.values

    def add(self, columns: Mapping[str, Column], is_trained_on: bool) -> None:
        """Adds a client with examples.

        Args:
            columns: columns of the client.
            is_trained_on: whether its words count for the vocabulary.

        Raises:
            ValueError: the columns do not fit the table.
        """
        table = self._table
        if table.tokens:
            self._add_texts(columns[table.tokens], is_trained_on)
            return
        # The first client determines kind and shapes. `Form.examples` checks clients that are not
        # read here.
        if table.inputs:
            inputs = inputs_of(columns[table.inputs], table)
            if self._kind is None:
                self._shape = inputs.shape[1:]
            _of_shape(inputs, self._shape, table.inputs)
        if not table.targets:
            self._kind = "none"
            return
        targets = targets_of(columns[table.targets], table.targets)
        if self._kind is None:
            self._target_shape = targets.shape[1:]
            self._kind = "real" if targets.dtype.kind == "f" else "whole"
        if self._kind == "whole":
            _check_whole(targets, table.targets)
            self._count_values(targets)

    def contents(self) -> Contents:
        """Returns the contents of all added clients.

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
            # Numbers start at 0, so there is one more than the largest.
            values = self._table.values or self._largest + 1
        return Contents(self._kind, values, (), self._shape, self._target_shape)

    def _add_texts(self, texts: Column, is_trained_on: bool) -> None:
        if self._kind is None:
            self._kind = "words" if _is_words(texts[0]) else "whole"
        if self._kind == "words":
            # Words of held-out clients in the vocabulary would flatter their evaluation.
            if is_trained_on and self.needs_more:
                words = (words_of(text, self._table) for text in texts)
                self._words.update(chain.from_iterable(words))
                _drop_rare(self._words)
            return
        for text in texts:
            self._count_values(whole_text(text, self._table.tokens))

    def _count_values(self, found: Integers) -> None:
        self._largest = max(self._largest, int(found.max(initial=-1)))

    def _vocabulary(self) -> tuple[str, ...]:
        if self._table.vocabulary_file:
            path = self._table.checked_path("vocabulary_file")
            return read_vocabulary(path, self._table.unit)[: self._table.vocabulary]
        # Equally frequent words are in alphabetical order, not in the order in which clients were
        # read.
        frequent = sorted(self._words, key=lambda word: (-self._words[word], word))
        return tuple(frequent[: self._table.vocabulary])


def read_vocabulary(path: Path, unit: str = "word") -> tuple[str, ...]:
    """Returns the words, or characters, of a file with one per line, the most frequent first;
    words without white space around them.

    Raises:
        Damaged: the file cannot be read, or has a word twice or one that no text can contain.
    """
    where = f"vocabulary_file={str(path)!r}"
    try:
        content = read_regular_file(path, MOST_VOCABULARY_BYTES)
        lines = decode_text(content).split("\n")
    except (OSError, ValueError) as error:
        raise Damaged(f"{where} cannot be read ({error})") from None
    # Windows files end their lines with \r\n.
    stripped = [line.strip() if unit == "word" else line.rstrip("\r") for line in lines]
    words = tuple(line for line in stripped if line)
    for number, line in enumerate(stripped, 1):
        # No text has it, so it would be the unknown word wherever it occurs.
        if line and list(_parts(line, unit)) != [line]:
            raise Damaged(f"{where} has {line[:60]!r} in line {number}, not a single {unit}")
    for word, times in Counter(words).most_common(1):
        if times > 1:
            raise Damaged(f"{where} has {word!r} twice")
    if not words:
        raise Damaged(f"{where} has no words")
    return words


def words_of(text: Any, table: FormedData) -> Sequence[str]:
    """Returns the words of one text, which is a str or a list of words.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(text, str):
        between = " " if table.unit == "word" else ""
        try:
            # Joined first, so that a list of words and the same text as a str are equal.
            text = between.join(text)
        except TypeError:
            raise ValueError(
                f"column {table.tokens!r} has a text that is neither a string nor a list of strings"
            ) from None
    return _parts(text, table.unit)


def _parts(text: str, unit: str) -> Sequence[str]:
    # Files that were joined have their byte order marks between words.
    return text.replace("\ufeff", " ").split() if unit == "word" else list(text)


def whole_text(text: Any, name: str) -> Integers:
    """Returns a text of whole numbers in the column `name` as an array.

    Raises:
        ValueError: it is something else.
    """
    found = np.asarray(None if _has_text(text) else text)
    # An empty list is a text too, although numpy makes it an array of reals.
    is_whole = not found.size or found.dtype.kind in "biu"
    if found.ndim != 1 or not is_whole:
        raise ValueError(f"column {name!r} has a text that is not a list of whole numbers")
    return _as_int64(found, name)


def inputs_of(column: Column, table: FormedData) -> Float32Array:
    """Returns the inputs [N, *shape] of a column, scaled and in the shape of the table.

    Raises:
        ValueError: they are not finite numbers of one shape.
    """
    found = _numbers(column, table.inputs)
    scaled = _as_float32(found, table.inputs, table.scale)
    if table.shape is None:
        # A single number is a vector of one.
        return scaled[:, None] if scaled.ndim == 1 else scaled
    own_shape = scaled.shape[1:]
    if math.prod(own_shape) != math.prod(table.shape):
        raise ValueError(
            f"column {table.inputs!r} has shape {own_shape}, which cannot be given the "
            f"shape {table.shape}"
        )
    return scaled.reshape(-1, *table.shape)


def targets_of(column: Column, name: str) -> NDArray:
    """Returns the targets [N, ...] of the column `name`: int64, or float32 if they are reals.

    Raises:
        ValueError: they are not finite numbers of one shape, or below 0.
    """
    found = _numbers(column, name)
    is_real = found.dtype.kind == "f"
    return _as_float32(found, name) if is_real else _as_int64(found, name)


def _numbers(column: Column, name: str) -> NDArray:
    try:
        found = np.asarray(None if _has_text(column) else column)
    except ValueError:
        raise ValueError(f"column {name!r} has examples of different shapes") from None
    if found.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} has values that are not numbers")
    if len(found) and not found.size:
        raise ValueError(f"column {name!r} has examples without a number")
    if found.size > MOST_CLIENT_NUMBERS:
        raise ValueError(f"column {name!r} has more than {MOST_CLIENT_NUMBERS:,} numbers")
    return found


def _has_text(values: Any) -> bool:
    """Whether nested lists contain texts.

    numpy would pad each value to the longest text, which a small file can make larger than the
    memory.
    """
    if not isinstance(values, list | tuple):
        return isinstance(values, str | bytes)
    kinds = set(map(type, values))
    nested = (each for each in values if isinstance(each, list | tuple))
    return bool(kinds & {str, bytes}) or (
        bool(kinds & {list, tuple}) and any(map(_has_text, nested))
    )


def _as_float32(found: NDArray, name: str, scale: float = 1.0) -> Float32Array:
    # Values that overflow become infinite, and are refused.
    with np.errstate(over="ignore"):
        reals = (scale * found.astype(np.float64)).astype(np.float32)
    if not (is_finite := np.isfinite(reals)).all():
        first = int(np.argwhere(~is_finite)[0][0])
        raise ValueError(
            f"column {name!r} has values that are not finite float32 numbers, first in example "
            f"{first} of the client, counted from 0"
        )
    return reals


def _as_int64(found: NDArray, name: str) -> Integers:
    if found.size and (found.min() < 0 or found.max() >= 2**40):
        raise ValueError(f"column {name!r} has a whole number outside 0 to 2^40")
    return found.astype(np.int64)


def _of_shape(found: NDArray, shape: tuple[int, ...], name: str) -> NDArray:
    if found.shape[1:] != shape and found.shape[0]:
        raise ValueError(
            f"column {name!r} has shape {found.shape[1:]}, but {shape} in other clients"
        )
    # A client without examples has no shape, and takes the common one.
    return found.reshape(-1, *shape)


def _check_whole(targets: NDArray, name: str) -> None:
    if targets.dtype.kind == "f":
        raise ValueError(f"column {name!r} has reals among its whole numbers")


def _check_values(found: Integers, values: int, name: str) -> None:
    if found.size and found.max() >= values:
        raise ValueError(
            f"column {name!r} has {int(found.max())}, and data.values says {values} values: 0 to "
            f"{values - 1}"
        )


def _is_words(text: Any) -> bool:
    if isinstance(text, str):
        return True
    # An empty list does not show its kind, and does not count as words.
    return isinstance(text, Iterable) and any(isinstance(word, str) for word in text)


def _drop_rare(words: Counter[str]) -> None:
    if len(words) <= MOST_COUNTED_WORDS:
        return
    times = 1
    while len(words) > MOST_COUNTED_WORDS // 2:
        rare = [word for word, count in words.items() if count <= times]
        for word in rare:
            del words[word]
        times += 1
