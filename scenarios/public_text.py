"""Public text for `fedray reproduce gboard-recipes`: the synthetic language with another grammar for
every second word, on clients that are in no population."""

import numpy as np
from numpy.typing import NDArray

import fedray
from fedray.scenarios.reproduction import Language

FIRST_PUBLIC = np.uint64(1 << 39)


class PublicText(Language):
    """Sentences of the clients from FIRST_PUBLIC on."""

    def __init__(self, seed: int) -> None:
        rounds = {"count": 1, "report_goal": 1000}
        tables = {"seed": seed, "population": {"devices": 2000}, "rounds": rounds}
        scenario = fedray.Scenario.from_tables(tables)
        super().__init__(scenario, scenario.data)
        self._successor[::2] = np.roll(self._successor[::2], 1)

    def examples(self, device_ids: NDArray, positions: NDArray) -> dict[str, NDArray]:
        return super().examples(device_ids | FIRST_PUBLIC, positions)


def data(seed: int) -> PublicText:
    return PublicText(seed)
