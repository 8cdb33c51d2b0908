"""The store of sums to which devices have added noise: it opens one weighted sum a round, and
nothing else. Plain Python.

It stands for a committee that runs secure stateful aggregation (Ball et al. 2024): no member, and
no server, can read the sums. W of fedray/encoding/device_noise.py is opened once for each
round, for a set of devices that was closed before their messages came. So no one can choose devices
after seeing their messages, or open two sums that differ in one device.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Int64Array, UInt64Array
from fedray.encoding.device_noise import DeviceNoiseEncoding
from fedray.scenario import Scenario
from fedray.trace.checkpoints import prefixed, under


class _Opened(NamedTuple):
    """An opened round."""

    device_ids: UInt64Array
    """Closed set of its devices, sorted."""
    W: Int64Array
    """Opened sum [P], modulo M."""


class SumStore:
    """Sums X and Z of a run's rounds, and the closed sets of their devices.

    Rounds count opened sums, so an abandoned attempt and the next one have the same number.

    Args:
        scenario: scenario in which devices add noise.
        fewest: fewest devices of a round; by default the fewest that the rules of the scenario
            permit, in proportion if only a sample of the accepted devices trains.

    next_round: number of opened rounds.
    """

    def __init__(self, scenario: Scenario, fewest: int | None = None) -> None:
        self._scenario = scenario
        self._fewest = fewest_devices(scenario) if fewest is None else fewest

    def start(self, dimension: int) -> None:
        """Empties the store, for a model of D parameters. Raises ScenarioError."""
        setting = self._scenario.sum_setting(dimension)
        table = self._scenario.privacy.trust
        self._encoding = DeviceNoiseEncoding(table, setting)  # pyright: ignore[reportArgumentType]  (the table of such a scenario)
        self._dimension = dimension
        self.next_round = 0
        self._earlier: list[Int64Array] = []
        """X [P] of the last b - 1 opened rounds, the last one first."""
        self._opened: dict[int, _Opened] = {}
        """Opened rounds by number, since the last `state`."""
        self._close(0, np.empty(0, np.uint64))

    def close(self, round_index: int, device_ids: UInt64Array) -> None:
        """Closes the set of devices of a round, before their messages come. Whatever was added
        since the last opening is discarded: that attempt was abandoned.

        Args:
            round_index: the next round; or an opened one, of which `open` then repeats the answer.
            device_ids: devices of the round, in any order.

        Raises:
            ValueError: the round was opened for other devices, or is not the next one; too few
                devices, or one of them twice.
        """
        closed = np.unique(device_ids)
        if closed.size != device_ids.size:
            raise ValueError(f"round {round_index} has a device twice; its noise would count twice")
        opened = self._opened.get(round_index)
        if opened is None and round_index != self.next_round:
            raise ValueError(
                f"round_index={round_index} but round {self.next_round} is next; a sum is opened "
                "once, in order"
            )
        if opened is not None and not np.array_equal(opened.device_ids, closed):
            raise ValueError(
                f"round {round_index} was opened for another set of devices; a second sum would "
                "reveal the difference"
            )
        if closed.size < self._fewest:
            raise ValueError(
                f"round {round_index} has {closed.size} devices, fewer than the {self._fewest} "
                "whose noise the rules of the run ensure"
            )
        self._close(round_index, closed)

    def add(self, total_P: Int64Array, device_ids: UInt64Array) -> None:
        """Admits the messages of devices of the closed set, given their sum, as encoded.

        Raises:
            ValueError: a device is not in the set, or was admitted before.
        """
        places = np.searchsorted(self._closed, device_ids)
        is_in = places < self._closed.size
        is_in[is_in] = self._closed[places[is_in]] == device_ids[is_in]
        if not is_in.all() or self._is_admitted[places].any():
            raise ValueError(
                f"round {self._round}: a device of the sum is not in the closed set, or its "
                "message was admitted before"
            )
        self._is_admitted[places] = True
        self._encoding.add(self._total_P, total_P)

    def open(self) -> tuple[int, Int64Array]:
        """Opens the closed round, or returns the stored answer of an opened one.

        Returns:
            Number of its devices, and W [P] modulo M.

        Raises:
            ValueError: a message of the closed set is missing.
        """
        opened = self._opened.get(self._round)
        if opened is None:
            if not self._is_admitted.all():
                missing = int((~self._is_admitted).sum())
                raise ValueError(
                    f"round {self._round} lacks the messages of {missing} devices of its closed set"
                )
            opened = _Opened(self._closed, self._encoding.opened(self._total_P, self._earlier))
            self._opened[self._round] = opened
            if kept := len(self._encoding.coefficients) - 1:
                own = self._encoding.updates_of(self._total_P)
                self._earlier = [own, *self._earlier][:kept]
            self.next_round += 1
        return opened.device_ids.size, opened.W

    def state(self) -> dict[str, NDArray]:
        """Returns the store's own checkpoint: sums X, and the last closed set with its W. Earlier W
        are forgotten, because whoever calls this has kept the models of all opened rounds."""
        last = self.next_round - 1
        self._opened = {number: each for number, each in self._opened.items() if number == last}
        opened = {}
        for number, each in self._opened.items():
            opened |= {f"devices.{number}": each.device_ids, f"sum.{number}": each.W}
        return {
            "dimension": np.array(self._dimension),
            "next_round": np.array(self.next_round),
            **{f"earlier.{age}": each for age, each in enumerate(self._earlier)},
            **prefixed("opened.", opened),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state of `state` for the same scenario."""
        self.start(int(state["dimension"]))
        self.next_round = int(state["next_round"])
        earlier = under("earlier.", state)
        self._earlier = [earlier[str(age)] for age in range(len(earlier))]
        devices, sums = under("opened.devices.", state), under("opened.sum.", state)
        self._opened = {int(name): _Opened(each, sums[name]) for name, each in devices.items()}

    def _close(self, round_index: int, device_ids: UInt64Array) -> None:
        self._round, self._closed = round_index, device_ids
        self._is_admitted = np.zeros(device_ids.size, np.bool_)
        self._total_P = self._encoding.zero_sum()


def fewest_devices(scenario: Scenario) -> int:
    """Returns the fewest devices of a round whose noise the rules of a scenario ensure, in
    proportion if only a sample of them trains."""
    rounds = scenario.rounds
    return math.ceil(rounds.least_accepted * scenario.trained_devices / rounds.report_goal)
