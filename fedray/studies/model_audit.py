"""An audit of a trained model: traces of planted phrases, and of the devices that took part.

Exposure (Carlini et al. 2019) says how far a planted phrase stands out among random ones; phrases
whose coin left them out are controls. User inference (Kandpal et al. 2023) tells devices that
trained from others by how much more likely their texts became since the initial model. The coins of
planted phrases also give lower bounds of epsilon (`fedray.audit.one_run`), beside the upper bound
of the trace. Only the last model is looked at: a trained run keeps no other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from fedray.audit.one_run import LowerBound, bounds_of_scores
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.arrays import Float64Array, Int64Array, UInt64Array
from fedray.base.document import InJson, Keys, NotInJson
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.base.rng import Stream, stream_generator
from fedray.clients.data.planted import Phrases, PlantedExamples, reference_phrases
from fedray.clients.population import Presence, devices_of_ranks, joined_before
from fedray.clients.trainer import LocalTrainer
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.runs.learning import cohorts
from fedray.scenario import Scenario
from fedray.studies.inference import (
    Interval,
    area_under_curve,
    exposure_without_memory,
    exposures,
    found_members,
    mean_interval,
)
from fedray.trace.learned_from import opened_training
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

REFERENCES = 4095
"""Default number of random phrases, among which exposure is at most 12 bits."""
UNITS = 2
"""Units of privacy that a holder's coin changes: its update with the phrase is removed, and the one
without is added."""
LEAST = 100
"""Fewest devices of either kind: with fewer, no one may be accused at 1 %."""
NOTES = (
    "Exposure is exact among the random phrases; intervals are of the mean over phrases, by "
    "Student's t.",
    "Planted phrases replace texts of devices. A coin changes twice as many units of privacy as "
    "devices hold its phrase, and bounds are of one device.",
    "Each row has bounds at 95 %; the largest of several rows has not.",
    "User inference leaves out the devices that may hold a phrase. Its intervals are estimates: "
    "DeLong's, and Clopper and Pearson's at the measured threshold.",
)


@dataclass(frozen=True, slots=True)
class PhrasesFound:
    """Traces in a model of the phrases of one table `training.planted`."""

    copies: int
    """Texts of a holder that the phrase replaces, at most."""
    devices: int
    """Devices that hold a planted phrase."""
    planted: int
    """Number of planted phrases."""
    left_out: int
    """Number of candidates that the coins left out."""
    trained: float
    """Mean number of times that a planted phrase's devices trained, all of them together."""
    exposure: Interval
    """Mean exposure of planted phrases, in bits."""
    exposure_left_out: Interval
    """Mean exposure of the candidates that were left out, in bits."""
    lower: tuple[LowerBound, ...]
    """Lower bounds of the privacy loss of one device."""


@dataclass(frozen=True, slots=True)
class UserInference:
    """Distinction of devices that trained from others by their texts."""

    members: int
    """Number of devices that trained."""
    others: int
    """Number of devices that never took part."""
    area: Interval
    """Probability that a member's score is the higher one (AUC); 1/2 for guesses."""
    found: Interval
    """Share of members that are found if 1 % of the others are accused."""


@dataclass(frozen=True, slots=True)
class ModelAudit(DrawnResult):
    """Traces in a trained model of planted phrases and of the devices that trained it."""

    TABLES: ClassVar[str] = "fedray.studies.model_audit_page:model_audit_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.model_audit_page:model_audit_subject"
    FIGURES: ClassVar[str] = "fedray.studies.model_audit_page:model_audit_figures"
    PAGE: ClassVar[str] = "fedray.studies.model_audit_page:model_audit_page"

    trained: Annotated[TrainedRun, Keys("path trace_digest")]
    """The run whose final model it is."""
    delta: float
    """Delta of every epsilon: `privacy.delta`."""
    upper_epsilon: float | None
    """Upper bound of a device's epsilon, exact for what all models of this training show; None if
    there is none, or if devices added the noise."""
    is_sample: NotInJson[bool]
    """Whether only some devices of a cohort trained, with their share of the noise."""
    references: int
    """Number of random phrases among which phrases are ranked."""
    exposure_without_memory: float
    """Expected exposure of a phrase that no device holds, in bits."""
    phrases: tuple[PhrasesFound, ...]
    """Traces in the model of planted phrases, by table of the scenario."""
    users: UserInference | None
    """User inference; None if fewer than 100 devices of either kind have data."""
    notes: ClassVar[InJson[tuple[str, ...]]] = NOTES
    """Notes for a reader, a sentence or two each."""

    def __repr__(self) -> str:
        return f"<ModelAudit of {self.trained!r}: {len(self.phrases)} tables of phrases>"


def audit_model(
    trained: TrainedRun | str | Path,
    trace: Trace | str | Path | None = None,
    devices: int = 512,
    examples: int = 64,
    references: int = REFERENCES,
    *,
    trust_code: bool = False,
) -> ModelAudit:
    """Audits the final model of a trained run.

    Args:
        trained: the run.
        trace: trace of its training; by default the one in which it lies.
        devices: most devices of either kind for user inference.
        examples: most examples used of each device, its first ones.
        references: number of random phrases among which phrases are ranked.
        trust_code: whether the code of a custom task or data that came with the run may be run.

    Raises:
        InputError: an argument is impossible, the trace is another one or missing, the code is not
            trusted, or the task has no metric `loss`.
        TraceError: the run or the trace cannot be read.
    """
    for name, value in (("devices", devices), ("examples", examples), ("references", references)):
        if not 1 <= value <= 1 << 22:
            raise InputError.of(name, value, f"must be from 1 to {1 << 22:,}")
    run, found, scenario = opened_training(trained, trace)
    if not trust_code:
        scenario.demand_trust_of_training()
    if "loss" not in {metric.name for metric in run.task_metrics}:
        raise InputError("the task has no metric `loss`, by which devices are told apart; add one")
    trainer = LocalTrainer(scenario.for_trainers())
    model, source, delta = _Model(run, trainer), trainer.examples, scenario.privacy.delta
    trained_in, factor = _trained_patterns(scenario, found)
    phrases = source.phrases if isinstance(source, PlantedExamples) else ()
    listed: list[PhrasesFound] = []
    if phrases:
        random = model.losses(reference_phrases(scenario, source.fields["tokens"], references))
        listed = [_phrases_found(model, each, random, trained_in, delta) for each in phrases]
    # Planted phrases would give their holders away.
    kept_out = [each.candidates.ravel() for each in phrases]
    holders = np.concatenate([np.empty(0, np.uint64), *kept_out])
    draws = _Draws(scenario, found, devices)
    members = draws.members(np.setdiff1d(trained_in.device_ids, holders))
    others = draws.others(np.union1d(read_patterns(found).device_ids, holders))
    return ModelAudit(
        trained=run,
        delta=delta,
        upper_epsilon=_upper_epsilon(scenario, trained_in, factor),
        is_sample=scenario.trains_a_sample,
        references=references,
        exposure_without_memory=exposure_without_memory(references),
        phrases=tuple(listed),
        users=_users(model.gains(members, examples), model.gains(others, examples)),
    )


class _Draws:
    """Uniform samples of a trace's devices, sorted; a function of the scenario's seed and the size.

    Args:
        scenario: scenario of the training.
        trace: trace of the training.
        sample: most devices of a sample.
    """

    # Addresses of the draws within Stream.DEVICE_SAMPLE.
    _OTHERS, _MEMBERS = 1, 3

    def __init__(self, scenario: Scenario, trace: Trace, sample: int) -> None:
        self._seed, self._sample = scenario.seed, sample
        self._presence = Presence.of(scenario)
        self._joined = joined_before(self._presence, float(trace.rounds["closed"].max()))

    def members(self, device_ids: UInt64Array) -> UInt64Array:
        """Returns some of the devices that trained."""
        size = min(device_ids.size, self._sample)
        return np.sort(self._generator(self._MEMBERS).choice(device_ids, size, replace=False))

    def others(self, without: UInt64Array) -> UInt64Array:
        """Returns some devices that joined before the last round closed, less those in `without`.
        (`joined_before` may count two more than have joined.)"""
        wanted = min(self._sample, self._joined - without.size)
        # Twice the wanted number, as some are in `without`; more if that was too few.
        size = min(self._joined, 2 * wanted)
        while True:
            # The address is used again: a larger draw of ranks is uniform by itself.
            ranks = self._generator(self._OTHERS).choice(self._joined, size, replace=False)
            device_ids = devices_of_ranks(self._presence.order, ranks).astype(np.uint64)
            device_ids = device_ids[~np.isin(device_ids, without)]
            # A draw of all devices cannot be made larger.
            if device_ids.size >= wanted or size == self._joined:
                return np.sort(device_ids[:wanted])
            size = min(self._joined, 2 * size)

    def _generator(self, kind: int) -> np.random.Generator:
        return stream_generator(self._seed, Stream.DEVICE_SAMPLE, kind, 0)


class _Model:
    """The final model of a run, and the model before training."""

    def __init__(self, run: TrainedRun, trainer: LocalTrainer) -> None:
        self._trainer = trainer
        self._final, self._initial = run.parameters(), trainer.initial_parameters()

    def losses(self, tokens: Int64Array) -> Float64Array:
        """Losses of texts [N, T] under the final model, [N]."""
        return self._trainer.text_losses(self._final, tokens)

    def gains(self, device_ids: UInt64Array, examples: int) -> Float64Array:
        """Mean log-likelihood ratio of each device's examples, final over initial model (Kandpal et
        al. 2023, equation 2). Devices without data are left out."""
        measure = self._trainer.measure_devices
        before, after = (measure(of, device_ids, examples) for of in (self._initial, self._final))
        return (before.sums["loss"] - after.sums["loss"])[:, 0] / after.examples


def _phrases_found(
    model: _Model, phrases: Phrases, random: Float64Array, trained: Patterns, delta: float
) -> PhrasesFound:
    losses, is_planted, table = model.losses(phrases.tokens), phrases.is_planted, phrases.table
    bits, planted = exposures(losses, random), int(is_planted.sum())
    is_holder = np.isin(trained.device_ids, phrases.candidates[is_planted])
    return PhrasesFound(
        copies=table.copies,
        devices=table.devices,
        planted=planted,
        left_out=table.phrases - planted,
        trained=float(trained.counts[is_holder].sum() / max(1, planted)),
        exposure=mean_interval(bits[is_planted]),
        exposure_left_out=mean_interval(bits[~is_planted]),
        lower=bounds_of_scores(-losses, is_planted, delta, UNITS * table.devices),
    )


def _users(members: Float64Array, others: Float64Array) -> UserInference | None:
    """Returns the inference of members by their scores, or None if there are too few."""
    if min(members.size, others.size) < LEAST:
        return None
    area, found = area_under_curve(members, others), found_members(members, others)
    return UserInference(members.size, others.size, area, found)


def _trained_patterns(scenario: Scenario, trace: Trace) -> tuple[Patterns, float]:
    """Returns the rounds in which devices really trained, with weights of at most 1, and the
    factor on all weights: the noise on a sample's sum has only the sample's share of the noise."""
    if not scenario.trains_a_sample:
        return read_patterns(trace), 1.0
    rows = [(each.device_ids, each.accepted) for _, each in cohorts(trace, scenario)]
    ids = np.concatenate([own for own, _ in rows])
    sizes = [own.size for own, _ in rows]
    weights = np.repeat([(accepted or own.size) / own.size for own, accepted in rows], sizes)
    order = np.argsort(ids, kind="stable")
    rounds = np.repeat(np.arange(len(rows), dtype=np.uint32), sizes)[order]
    device_ids, times = np.unique(ids, return_counts=True)
    most = float(weights.max())
    return Patterns(len(rows), device_ids, times, rounds, weights[order] / most), most


def _upper_epsilon(scenario: Scenario, trained: Patterns, factor: float) -> float | None:
    """Returns the exact epsilon of all models of this training; None without a figure."""
    privacy = scenario.privacy
    if privacy.strategy is None or privacy.sent.adds_noise:
        return None
    sensitivity = factor * trace_sensitivity(privacy.strategy, trained).value
    return gaussian_epsilon(sensitivity / privacy.noise_multiplier, privacy.delta)
