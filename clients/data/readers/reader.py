"""What a reader of recorded data is: clients, and the columns of one client's examples.

To add a format: ARCHITECTURE.md, "To add".
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from numpy.typing import NDArray

Column = NDArray | Sequence
"""One column of N examples: an array [N, ...], or a sequence of N texts (str), texts in words
(sequences of str) or sequences of numbers."""
MOST_CLIENT_BYTES = 1 << 30
"""Most bytes of one column of one client, or of its records as a file has them. Formats that
compress can hold far more in a small file, so readers check it before they unpack."""


class Client(NamedTuple):
    """One client of the data, as an index has it.

    split: such as "train"; empty where the data has no splits.
    name: the client's, which is its own within the split.
    examples: how many there are.
    first, end: where they lie, in the reader's own unit; 0 where the name is enough.
    """

    split: str
    name: str
    examples: int
    first: int = 0
    end: int = 0


class Damaged(ValueError):
    """Data that is not what its format says; the message names file and record."""


class ClientFile(Protocol):
    """Recorded data of clients. It is opened without reading all of it.

    A reader is used by one thread at a time, which may change.
    """

    def clients(self) -> Iterator[Client]:
        """Every client of every split, in the order in which the data lies.

        A client whose records lie in several places comes once for each of them.

        Raises:
            Damaged: something cannot be read.
        """
        ...

    def gathered(self) -> "ClientFile | None":
        """A reader of the same data in which the records of each client lie together, copied into
        the cache unless the copy is there; None where the format gives a client one place.

        Raises:
            Damaged: something cannot be read.
        """
        ...

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """Columns of all examples of a client, in the order of its records.

        Args:
            client: one that `clients` gave.
            columns: their names.

        Raises:
            Damaged: something cannot be read, or lacks a column.
        """
        ...
