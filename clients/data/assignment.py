"""Assignment of the data's clients to devices, and the choice of held-out clients.

Clients are known by their places 0 to N - 1 in order of their names. A device without a tie has the
client at `permutation[device % N]`, so every client has the same number of devices, up to one, and
at most one device if the clients suffice. A device with a tie has the client at its
quantile: if it stands at a share q of all devices, ordered by zone, hour or speed, it gets the
client at the share q of all clients in their order. Among devices with the same trait, such as a
zone, q is drawn uniformly.

Everything is a function of the scenario's seed and the device's id, except the choice of the
held-out clients. It is the same for every seed, so that results of several seeds are comparable,
and a counted vocabulary never saw these clients.
"""

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.compiled import njit
from fedray.base.errors import ScenarioError
from fedray.base.rng import Key, Stream, draw, stream_generator, stream_key, uniform
from fedray.scenario import Scenario
from fedray.scenario.availability import HabitAvailability
from fedray.scenario.data import AssignedData
from fedray.wire.device_classes import DeviceClasses, classes_of, classes_on
from fedray.wire.zones import Zones, zones_on
from ..availability.habit import HabitAvailabilityModel
from ..population import DeviceModel, speed_of
from .source import FIRST_HELD_OUT, Ids, Integers

QUANTILE_DEVICES = 16_384
"""Number of devices, from id 0 on, that serve as a sample of all zones, hours or speeds."""


def held_out_places(clients: int, share: float) -> Integers:
    """Returns the places of held-out clients, in a random order that is the same for every seed.

    Args:
        clients: number of clients, at least two.
        share: share of held-out clients, rounded to at least one, and to fewer than all.
    """
    wanted = min(clients - 1, max(1, round(share * clients)))
    return _drawn_order(clients)[:wanted]


def drawn_order(places: Integers) -> Integers:
    """Returns places in a random order that is the same for every seed."""
    return places[_drawn_order(places.size)]


class Assignment:
    """The clients of the devices of one scenario.

    Args:
        scenario: scenario with seed, zones, habits and speeds.
        table: table with the tie.
        counts: examples [N] of the clients to assign, in order of their names.
        held_out: number of held-out clients, at places from N on.
    """

    def __init__(
        self,
        scenario: Scenario,
        table: AssignedData,
        counts: Integers,
        held_out: int,
    ) -> None:
        self._clients = counts.size
        self._held_out = held_out
        # The trace records numbers of examples, so this takes the seed of the simulation.
        self._key = stream_key(scenario.seed, Stream.DATA)
        generator = stream_generator(scenario.seed, Stream.DATA)
        self._permutation = generator.permutation(counts.size)
        self._strength = 0.0 if table.tie == "none" else table.tie_strength
        if not self._strength:
            return
        if table.tie_order == "name":
            self._ordered = np.arange(counts.size)
        else:
            self._ordered = np.argsort(counts, kind="stable")
        self._traits = _Traits(scenario, table)
        # A sample, because computing the traits of all devices would take too long.
        devices = min(QUANTILE_DEVICES, scenario.device_ids)
        sample_ids = np.arange(devices, dtype=np.uint64)
        self._sample = np.sort(self._traits.of(sample_ids))

    @property
    def is_tied(self) -> bool:
        """Whether clients depend on traits of devices."""
        return self._strength > 0

    def places(self, device_ids: Ids) -> Integers:
        """Returns the places [G] of the clients of devices [G]; N and more for held-out devices.

        Raises:
            IndexError: an id from FIRST_HELD_OUT on has no client.
        """
        turns = (device_ids % np.uint64(self._clients)).astype(np.int64)
        places = self._permutation[turns]
        is_held_out = device_ids >= FIRST_HELD_OUT
        if is_held_out.any():
            numbers = (device_ids[is_held_out] - FIRST_HELD_OUT).astype(np.int64)
            if numbers.max() >= self._held_out:
                raise IndexError(f"only {self._held_out} devices are held out")
            places[is_held_out] = self._clients + numbers
        if self._strength:
            draws = _uniforms(self._key, device_ids)
            for_tie, for_place = draws.T
            # Held-out devices keep their held-out clients.
            is_tied = (for_tie < self._strength) & ~is_held_out
            places[is_tied] = self._tied_places(device_ids[is_tied], for_place[is_tied])
        return places

    def _tied_places(self, device_ids: Ids, draws: Float64Array) -> Integers:
        traits = self._traits.of(device_ids)
        low = np.searchsorted(self._sample, traits, "left")
        high = np.searchsorted(self._sample, traits, "right")
        # A trait within the sample takes its share of it. A new one takes one of the equally large
        # gaps: before the first device, between two, or after the last.
        is_known = high > low
        share = np.where(is_known, high - low, 1)
        quantile = (low + draws * share) / (self._sample.size + ~is_known)
        ranks = np.minimum(quantile * self._clients, self._clients - 1)
        return self._ordered[ranks.astype(int)]


class _Traits:
    """The trait by which devices are ordered."""

    def __init__(self, scenario: Scenario, table: AssignedData) -> None:
        self._tie = table.tie
        self._devices = DeviceModel.of(scenario)
        self._zones = Zones.of(scenario.population.time_zones, scenario.seed)
        self._habit = None
        self._classes = DeviceClasses.of(scenario)
        each_class = classes_of(scenario)
        self._train_factors = np.array([each.train_time_factor for each in each_class])
        has_own = any(each.availability or each.time_zones for each in each_class)
        if table.tie in ("hour", "zone") and has_own:
            raise ScenarioError.of(
                "data.tie",
                table.tie,
                "is ambiguous: with an availability or time zones per class, hours and zones of "
                "devices have no common order",
                "choose another tie",
            )
        if table.tie == "hour":
            if not isinstance(scenario.availability, HabitAvailability):
                raise ScenarioError(
                    "data.tie='hour' needs the habit model: devices have no hours in "
                    f"availability.model={scenario.availability.model!r}; choose another tie"
                )
            self._habit = HabitAvailabilityModel(scenario.availability, scenario.seed, self._zones)

    def of(self, device_ids: Ids) -> Float64Array:
        """Returns the trait [G] of each device that `data.tie` names: "hour", the UTC hour of the
        middle of its night; "zone", the number of its time zone; "speed", the factor on its
        training time."""
        if self._habit is not None:
            known = self._habit.known_of(device_ids)
            utc_hours = known.center - self._zones.offsets[known.zone]
            return utc_hours % 24.0
        if self._tie == "zone":
            return zones_on(self._zones, device_ids).astype(np.float64)
        own_class = classes_on(self._classes, device_ids)
        return self._train_factors[own_class] * _speeds_on(self._devices, device_ids)


@njit(cache=True, nogil=True)
def _speeds_on(model: DeviceModel, device_ids: Ids) -> Float64Array:
    found = np.empty(device_ids.size)
    for index in range(device_ids.size):
        training, _, _ = speed_of(model, device_ids[index])
        found[index] = training
    return found


@njit(cache=True, nogil=True)
def _uniforms(key: Key, device_ids: Ids) -> Float64Array:
    """Addresses: (device, 0, 0)."""
    found = np.empty((device_ids.size, 2))
    for index in range(device_ids.size):
        w0, w1, w2, _ = draw(key, device_ids[index], 0, 0)
        found[index, 0] = uniform(w0)
        # Two words, so that each of a million clients is equally likely.
        high = np.float64(np.int64(w1))
        found[index, 1] = (high + uniform(w2)) / 4294967296.0
    return found


def _drawn_order(size: int) -> Integers:
    return stream_generator(0, Stream.HELD_OUT).permutation(size)
