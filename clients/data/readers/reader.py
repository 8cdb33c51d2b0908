"""The protocol of a reader of recorded data: clients, and columns of a client's examples.

To add a format: docs/extending.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from numpy.typing import NDArray

from fedray.base.errors import one_line

Column = NDArray | Sequence
"""One column of N examples: an array [N, ...], or a sequence of N texts (str), texts in words
(sequences of str) or sequences of numbers."""
MOST_CLIENT_BYTES = 1 << 30
"""Largest size of one column of one client, or of its records in the file, bytes. Compressed
formats can hold far more in a small file, so readers check it before they unpack."""


class Client(NamedTuple):
    """One client of the data, as in an index."""

    split: str
    """Name such as "train"; empty if the data has no splits."""
    name: str
    """Name of the client, unique within the split."""
    examples: int
    """Number of examples."""
    first: int = 0
    """First of the records in the reader's own unit; 0 if the name suffices."""
    end: int = 0
    """End of the range of the records in that unit; 0 if the name suffices."""


class Damaged(ValueError):
    """Data that violates its format; the message names file and record."""


class NoColumn(Damaged):
    """Data without the column that a key names; the message lists those that it has."""


class ClientFile(Protocol):
    """Recorded data of clients, which opens without reading all of it.

    A reader is used by one thread at a time, which may change.
    """

    def clients(self) -> Iterator[Client]:
        """Yields every client of every split, in the order of the data.

        A client whose records lie in several places occurs once for each of them, which the index
        refuses.

        Raises:
            Damaged: something cannot be read.
        """
        ...

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """Returns columns of all examples of a client, in the order of its records.

        Raises:
            Damaged: something cannot be read, or lacks a column.
        """
        ...


@contextmanager
def damage(subject: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raises Damaged with the message "subject: reason" for errors of these kinds."""
    try:
        yield
    except Damaged:
        raise
    except kinds as error:
        # The text of an error of the system would repeat its number and the path.
        reason = getattr(error, "strerror", None) or error
        raise Damaged(one_line(f"{subject}: {reason}")) from None
