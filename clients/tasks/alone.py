"""Steps of a module on its own parameters, for devices that train one at a time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def filled(own: list[nn.Parameter], values: Iterable[Tensor]) -> Iterator[None]:
    """Within: the parameters of a module are these values, in their memory."""
    before = [part.data for part in own]
    _set(own, values)
    try:
        yield
    finally:
        _set(own, before)


def _set(own: list[nn.Parameter], values: Iterable[Tensor]) -> None:
    for part, value in zip(own, values, strict=True):
        part.data = value
