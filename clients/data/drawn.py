"""Parts that synthetic sources share."""

from collections.abc import Mapping

import numpy as np

from fedray.base.compiled import njit
from fedray.base.rng import draw, gamma, normal
from fedray.scenario import Scenario
from ..population import ExampleModel, examples_on
from .source import FIRST_HELD_OUT, Fields, Ids, Integers


class DrawnSource:
    """Base of sources whose counts come from the table `population`, as the trace records them.

    See fedray.clients.data.source.ExampleSource. Any number of devices may be held out.
    """

    held_out_devices: int = int(FIRST_HELD_OUT)

    def __init__(self, scenario: Scenario, fields: Fields, optimum: Mapping[str, float]) -> None:
        self.fields = fields
        self.optimum = optimum
        self._counts = ExampleModel.of(scenario)

    def examples_on(self, device_ids: Ids) -> Integers:
        return examples_on(self._counts, device_ids).astype(np.int64)


@njit
def fill_with_normals(values, key, device, a):
    """Fills a vector with standard normals from the addresses (device, a, 1 + n // 4)."""
    for place in range(0, values.size, 4):
        words = draw(key, device, a, 1 + place // 4)
        for offset in range(min(4, values.size - place)):
            values[place + offset] = normal(words[offset])


@njit
def fill_with_gammas(values, concentration, key, device):
    """Fills a vector with gammas, which over their sum are a Dirichlet, from (device, 0, b)."""
    for place in range(values.size):
        # A gamma is drawn by rejection, with 1000 addresses for its attempts.
        values[place] = gamma(concentration, key, device, 0, 1000 * place)
