"""Fairness of a trained model: its metrics on the data of the population's own devices, by how
often they took part and by time zone.

The metrics of a training are measured on devices that are in no population. Here they are measured
on devices of the population: on a uniform sample of all, and on samples of devices that took part
equally often. Each device has a metric of its own, and counts once, however many examples it has.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from fedray.audit.participation import read_patterns
from fedray.base.arrays import Float64Array, Int64Array, UInt64Array
from fedray.base.document import InJson, Keys, Only
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.base.rng import Stream, stream_generator
from fedray.clients.population import Presence, devices_of_ranks, joined_before, zone_offsets_on
from fedray.clients.workers import start_trainers
from fedray.runs.learning import cohorts
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.learned_from import opened_training
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Metric

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the metric over the devices of a group."""
SINGLE = 8
"""Counts up to here are groups of their own; beyond, groups end at powers of two."""
NOTES = (
    "Every device counts once: its metric is that of its own examples. Metrics of the training are "
    "of all examples of held-out devices together, so both may differ.",
    "Devices that took part are measured on examples that they may have trained on.",
)
TRAINED_NOTE = (
    "Of a round's devices a sample trained the model. Groups by 'trained' count the rounds in "
    "which a device was in that sample."
)


class MetricOnDevices(NamedTuple):
    """A metric on the devices of a group."""

    value: float
    """Mean of the metric over the devices of the group; NaN without a device."""
    standard_error: float
    """Standard error of the mean; NaN for fewer than two devices."""
    quantiles: tuple[float | None, ...]
    """Quantiles of the metric over these devices."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that have something in common, and how a model does on them.

    Statistics are over devices, each of which counts once.
    """

    by: str
    """Their common property: "all", "participations", "trained" or "zone"."""
    low: float
    """The least count, or the hours of the time zone from UTC; 0 for all."""
    high: float
    """The largest count; for other kinds as `low`."""
    devices: int
    """Devices of the sample with data that can be read."""
    metrics: Mapping[Annotated[str, "metric"], MetricOnDevices]
    """Measurements on the devices of the group."""

    @property
    def label(self) -> InJson[str]:
        """Name in tables: "all", a count, counts from and to, or a time zone as "UTC+1"."""
        if self.by == "all":
            return "all"
        if self.by == "zone":
            return f"UTC{self.low:+g}"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class OnDevices(DrawnResult):
    """Quality of a trained model on devices of its population, by participation and time zone."""

    TABLES: ClassVar[str] = "fedray.studies.on_devices_page:on_devices_tables"
    FIGURES: ClassVar[str] = "fedray.studies.on_devices_page:on_devices_figures"
    PAGE: ClassVar[str] = "fedray.studies.on_devices_page:on_devices_page"

    trained: Annotated[TrainedRun, Keys("path trace_digest")]
    """The run whose final model it is."""
    metrics: Annotated[tuple[Metric, ...], Only("name unit better")]
    """Measured metrics."""
    groups: tuple[DeviceGroup, ...]
    """All devices first, then by participations, by trained rounds, by time zone."""
    sample: int
    """Most devices drawn from the population, and from each group of a count."""
    most_examples: int
    """Most examples that were used of each device."""
    without_data: int
    """Number of sampled devices that were left out because they have no readable examples."""
    notes: tuple[str, ...]
    """Notes for a reader, a sentence each."""
    quantiles: ClassVar[InJson[tuple[float, ...]]] = QUANTILES
    """Levels, from 0 to 1, of the quantiles that each group reports."""

    def __repr__(self) -> str:
        return f"<OnDevices of {self.trained!r}: {len(self.groups)} groups>"


def evaluate_on_devices(
    trained: TrainedRun | str | Path,
    trace: Trace | str | Path | None = None,
    devices: int = 512,
    examples: int = 64,
    *,
    trust_code: bool = False,
) -> OnDevices:
    """Measures the final model of a trained run on devices of its population.

    The drawn devices are a function of the scenario's seed, the group and `devices`.

    Args:
        trained: the run.
        trace: trace of its training; by default the one in which it lies.
        devices: size of the sample of the whole population, and of every group of devices that
            took part equally often; smaller groups are taken whole.
        examples: most examples used of each device, its first ones.
        trust_code: whether the code of a custom task or data that came with the run may be run.

    Raises:
        InputError: an argument is impossible, the trace is another one or missing, or the code
            is not trusted.
        TraceError: the run or the trace cannot be read.
    """
    for name, value in (("devices", devices), ("examples", examples)):
        if value < 1:
            raise InputError.of(name, value, "must be at least 1")
    run, found, scenario = opened_training(trained, trace)
    if not trust_code:
        scenario.demand_trust_of_training()
    chosen = DeviceDraws(scenario, found, devices).groups()
    # Groups overlap, and a device is measured once for all of them.
    device_ids = np.unique(np.concatenate([ids for _, _, _, ids in chosen]))
    # One trainer in this process: a few thousand devices are measured in seconds.
    here = Placement(backend="in-process", trainers=1)
    (trainer,) = start_trainers(scenario.for_trainers(), here, None)
    with contextlib.closing(trainer.worker):
        measures = trainer.measure_devices(run.parameters(), device_ids, examples).result()
    values = {metric.name: measures.values(metric) for metric in run.task_metrics}
    groups = []
    for by, low, high, ids in chosen:
        # Devices without data have no measures, so a group may have fewer devices than were drawn.
        is_in = np.isin(measures.device_ids, ids)
        metrics = {name: _summary(column[is_in]) for name, column in values.items()}
        groups.append(DeviceGroup(by, low, high, int(is_in.sum()), metrics))
    notes = (*NOTES, TRAINED_NOTE) if scenario.trains_a_sample else NOTES
    return OnDevices(
        trained=run,
        metrics=run.task_metrics,
        groups=tuple(groups),
        sample=devices,
        most_examples=examples,
        without_data=int(device_ids.size - measures.device_ids.size),
        notes=notes,
    )


_Chosen = tuple[str, float, float, UInt64Array]
"""Kind, low and high of a group, and the devices of its sample."""


class DeviceDraws:
    """The samples of a trace's devices."""

    def __init__(self, scenario: Scenario, trace: Trace, sample: int) -> None:
        self._scenario = scenario
        self._trace = trace
        self._sample = sample
        self._presence = Presence.of(scenario)
        self._joined = joined_before(self._presence, float(trace.rounds["closed"].max()))

    def groups(self) -> list[_Chosen]:
        """All groups with their samples; empty ones are left out."""
        patterns = read_patterns(self._trace)
        uniform = self.of_population("all", np.empty(0, np.uint64))
        found: list[_Chosen] = [("all", 0.0, 0.0, uniform)]
        found += self._by_count("participations", patterns.device_ids, patterns.counts)
        if self._scenario.trains_a_sample:
            # A trace names accepted devices; the sample that trained is drawn again.
            rows = [cohort.device_ids for _, cohort in cohorts(self._trace, self._scenario)]
            found += self._by_count("trained", *np.unique(rows, return_counts=True))
        # Zones of the uniform sample have their shares of the population.
        offsets = zone_offsets_on(self._scenario, uniform)
        for offset in np.unique(offsets).tolist():
            found.append(("zone", offset, offset, uniform[offsets == offset]))
        return [each for each in found if each[3].size]

    def _by_count(self, by: str, device_ids: UInt64Array, counts: Int64Array) -> Iterator[_Chosen]:
        """Groups of devices by a count, from 0 to the largest that occurs."""
        yield by, 0.0, 0.0, self.of_population(by, device_ids)
        # A draw per group at an address of its own, so that groups do not depend on one another.
        for low, high in _bins(int(counts.max(initial=0))):
            own = device_ids[(counts >= low) & (counts <= high)]
            # The last bin may end beyond the largest count that occurs.
            largest = counts[counts <= high].max()
            yield by, float(low), float(largest), self.of_devices(by, own, low)

    def of_devices(self, by: str, device_ids: UInt64Array, low: int = 0) -> UInt64Array:
        """A uniform sample of some devices, sorted."""
        size = min(device_ids.size, self._sample)
        return np.sort(self._generator(by, low).choice(device_ids, size, replace=False))

    def of_population(self, by: str, without: UInt64Array) -> UInt64Array:
        """A uniform sample, sorted, of the devices that joined before the last round closed, less
        those in `without`. (`joined_before` may count two more than have joined.)"""
        wanted = min(self._sample, self._joined - without.size)
        # Twice the wanted number, as some are in `without`; more if that was too few.
        size = min(self._joined, 2 * wanted)
        while True:
            # The address is used again: a larger draw of ranks is uniform by itself.
            ranks = self._generator(by, 0).choice(self._joined, size, replace=False)
            device_ids = devices_of_ranks(self._presence.order, ranks).astype(np.uint64)
            device_ids = device_ids[~np.isin(device_ids, without)]
            # A draw of all devices cannot be made larger.
            if device_ids.size >= wanted or size == self._joined:
                return np.sort(device_ids[:wanted])
            size = min(self._joined, 2 * size)

    def _generator(self, by: str, low: int) -> np.random.Generator:
        # The place in this list is part of the address, so the order must stay as it is.
        kind = ("all", "participations", "trained", "members").index(by)
        return stream_generator(self._scenario.seed, Stream.DEVICE_SAMPLE, kind, low)


def _bins(most: int) -> Iterator[tuple[int, int]]:
    """(low, high) of groups of counts from 1 to `most`: one by one, then up to powers of two."""
    yield from ((count, count) for count in range(1, min(SINGLE, most) + 1))
    low = SINGLE + 1
    # Bins double in width: 9 to 16, 17 to 32, and so on.
    while low <= most:
        yield low, 2 * (low - 1)
        low = 2 * (low - 1) + 1


def _summary(values: Float64Array) -> MetricOnDevices:
    """Mean and quantiles over devices; devices without a value do not count."""
    own = values[~np.isnan(values)]
    mean = float(own.mean()) if own.size else np.nan
    error = float(own.std(ddof=1) / np.sqrt(own.size)) if own.size > 1 else np.nan
    found = np.quantile(own, QUANTILES) if own.size else np.full(len(QUANTILES), np.nan)
    return MetricOnDevices(mean, error, tuple(found.tolist()))
