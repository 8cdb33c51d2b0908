"""A scenario: a frozen value that joins all tables, read from TOML and written back to TOML."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import tomli_w
from pydantic import BaseModel, Field, ValidationError, model_validator

from fedray.base.errors import InputError, ScenarioError
from fedray.base.mistakes import NAME_PATTERN, explain, refused
from fedray.base.parsing import parse_toml
from fedray.base.regular_file import read_input
from fedray.base.rounding import given, up
from fedray.base.table import Table
from fedray.encoding.encoding import SumSetting
from fedray.encoding.factory import encoding_of
from fedray.encoding.tables import DeviceNoiseTable, ModularTable
from fedray.mechanisms.accounting.clip_count import update_noise_multiplier
from fedray.mechanisms.running import check_can_be_filtered
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import MatrixFile
from fedray.scenario.analytics import (
    Analytics,
    EvaluationValues,
    ExampleValues,
    NumberValues,
    needed_by_question,
)
from fedray.scenario.availability import Availability, HabitAvailability
from fedray.scenario.content import ContentFile, PythonFile
from fedray.scenario.data import AnyData, FormedData, LanguageData
from fedray.scenario.data_file import PLACES, NamesDataFiles
from fedray.scenario.latency import Latency
from fedray.scenario.overrides import apply_override, in_order, merged, naming_overrides
from fedray.scenario.participation import Participation
from fedray.scenario.population import DeviceClass, Population
from fedray.scenario.privacy import Privacy
from fedray.scenario.rounds import Rounds
from fedray.scenario.training import Training, with_task_as_table
from fedray.scenario.weighting import MeanWeighting

TRAINED_TABLES = ("data", "training", "privacy")
"""Tables on which traces do not depend, except for the budget `privacy.stop_at`: two trainings on
one trace may differ in everything else in them."""
FILE_KEYS = (
    "analytics.values.file",
    "availability.file",
    *(f"data.{place}" for place in PLACES),
    "participation.hold.file",
    "privacy.mechanism.file",
    "training.initial.file",
    "training.task.file",
)
"""Keys that hold the path of a file whose content another key identifies."""


class Scenario(Table):
    """Complete description of a run; its trace is a function of this value."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=80)] = "scenario"
    """Short name of letters, digits, dots, dashes and underscores. Default in a file: the file's
    name without its suffix."""
    description: str = ""
    """One sentence for readers."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random draws."""
    population: Population
    """Table: the devices; `devices` is required."""
    availability: Availability = HabitAvailability()
    """Table: when devices are eligible."""
    participation: Participation = Participation()
    """Table: when a device may take part again."""
    latency: Latency = Latency()
    """Table: how long a selected device takes."""
    rounds: Rounds
    """Table: the server's rules for a round; `count` and `report_goal` are required."""
    data: AnyData = LanguageData()
    """Table: where the examples of the devices come from."""
    training: Training = Training()
    """Table: the training of a model."""
    privacy: Privacy = Privacy()
    """Table: the noise mechanism and its claims."""
    analytics: Analytics | None = None
    """Table: a question to the devices of every upload window. Default: none. With it, nothing is
    trained unless the table training is given."""

    @property
    def device_ids(self) -> int:
        """Number of device ids in the longest possible run, including devices that join."""
        # Rounding up counts a device that joins within the last day.
        return self.population.devices + math.ceil(
            self.population.joins_per_day * self.rounds.max_days
        )

    @property
    def of_classes(self) -> tuple[Self, ...]:
        """For each class of devices, a scenario in which all devices have its availability and time
        zones; without classes only the scenario itself."""
        return tuple(self._of_class(each) for each in self.population.classes or ()) or (self,)

    def _of_class(self, each: DeviceClass) -> Self:
        zones = each.time_zones or self.population.time_zones
        # The copy has no classes, because a class has no classes of its own.
        population = self.population.model_copy(update={"time_zones": zones, "classes": None})
        availability = self.availability
        if each.availability:
            availability = _with_keys(availability, each)
        return self.model_copy(update={"population": population, "availability": availability})

    @property
    def training_seed(self) -> int:
        """Seed of the model, its data and its noise."""
        return self.seed if self.training.seed is None else self.training.seed

    def sum_setting(self, dimension: int) -> SumSetting:
        """Returns the facts, besides its table, that the encoding of a model with D parameters
        depends on."""
        return SumSetting(
            dimension=dimension,
            devices=self.rounds.report_goal,
            sampled=self.training.cohort_sample,
            noise_multiplier=self.privacy.noise_multiplier,
            seed=self.training_seed,
            coefficients=self.privacy.coefficients,
        )

    def check_scale(self) -> None:
        """Refuses noise of devices that is too small or too large for the scale of `privacy.trust`.

        No validator does so: plans and stress tests replace noise and report goal, and recorded
        runs stay readable.

        Raises:
            ScenarioError: the scale does not fit.
        """
        table, is_model = self.privacy.sent, self.training.enabled or self.analytics is None
        # A target gets its noise later.
        if not isinstance(table, DeviceNoiseTable) or not is_model or self.privacy.target:
            return
        setting = self.sum_setting(table.parameters)
        if not self.training.enabled:
            # No sample of the cohort is trained, so the devices add all of their noise.
            setting = replace(setting, sampled=setting.devices)
        encoding_of(table, setting)

    def to_document(self) -> dict[str, Any]:
        """Returns digest and tables as run.json, training.json and unfinished.json record them.
        Raises InputError if the noise is not calibrated."""
        _ = self.update_noise_multiplier
        return {"scenario_digest": self.digest, "scenario": self.to_tables()}

    @classmethod
    def of_document(cls, document: Mapping[str, Any], source: str, directory: Path) -> Self:
        """Returns the scenario of a document; the inverse of `to_document`.

        Args:
            document: the recorded document.
            source: name of the document in messages.
            directory: folder of the files that it names by their digests.
        """
        return cls.from_tables(document["scenario"], source, directory, is_recorded=True)

    def for_shards(self) -> Self:
        """Returns a copy to send to shards, without the mechanism's matrix and the task's file."""
        # Shards compute who is eligible, and how many examples are on a device.
        return self._sent_with(self.availability, self.data, self.participation.hold)

    def for_trainers(self) -> Self:
        """Returns a copy to send to trainers, without the mechanism's matrix and the availability's
        file."""
        # Only the aggregator needs the noise, and a dense matrix may be very large.
        return self._sent_with(self.data, self.training.task)

    def for_aggregator(self) -> Self:
        """Returns a copy to send to the aggregator, without the files of availability, data and
        task."""
        return self._sent_with(self.privacy.mechanism)

    def _sent_with(self, *whole: BaseModel | None) -> Self:
        """Returns a copy in which only some tables keep the content of their files."""

        def sent(table: BaseModel) -> BaseModel:
            return _as_given(table) if table in whole else _without_content(table)

        # `model_copy` runs no validators, which would need content that some tables lack.
        hold = self.participation.hold
        parts = {
            "participation": self.participation.model_copy(
                update={"hold": None if hold is None else sent(hold)}
            ),
            "privacy": self.privacy.model_copy(update={"mechanism": sent(self.privacy.mechanism)}),
            "availability": sent(self.availability),
            "data": sent(self.data),
            "training": self.training.model_copy(update={"task": sent(self.training.task)}),
            # Workers simulate and train; the answer is computed from the trace.
            "analytics": None,
        }
        return self.model_copy(update=parts)

    @property
    def content_files(self) -> tuple[ContentFile, ...]:
        """Tables that name a file which is stored with traces."""
        values = None if self.analytics is None else self.analytics.values
        tables = (self.availability, self.participation.hold, values)
        own = [each for each in tables if isinstance(each, ContentFile)]
        return (*own, *self.training_files)

    @property
    def training_files(self) -> tuple[ContentFile, ...]:
        """The data and task tables that name a file which training reads."""
        tables = (self.data, self.training.task)
        return tuple(table for table in tables if isinstance(table, ContentFile))

    def demand_trust_of_training(self) -> None:
        """Raises InputError if a training would execute code that came with a trace or run."""
        for table in self.training_files:
            if isinstance(table, PythonFile):
                table.demand_trust()

    def demand_trust(self) -> None:
        """Raises InputError if a run would execute code that came with a trace or run."""
        for table in self.content_files:
            # Availability and data are executed in every run, and a task only in a training.
            is_run = table is not self.training.task or self.training.enabled
            if isinstance(table, PythonFile) and is_run:
                table.demand_trust()

    @property
    def trains_whole_rounds(self) -> bool:
        """Whether all accepted devices of a round train, whatever their number, as in Poisson
        samples."""
        return self.rounds.sampling_probability is not None

    @property
    def trained_devices(self) -> int:
        """Number of devices of a round that train; the expected number for a Poisson sample."""
        if self.trains_whole_rounds:
            return self.rounds.report_goal
        return self.training.cohort_sample

    @property
    def trains_a_sample(self) -> bool:
        """Whether a model is trained on fewer devices than a round accepts, with the noise on their
        sum scaled accordingly."""
        if self.trains_whole_rounds:
            return False
        # A round that keeps more reports than its goal may have more devices than the sample.
        may_leave_out = self.training.cohort_sample < self.rounds.report_goal
        return self.training.enabled and (may_leave_out or self.rounds.keeps_surplus)

    @property
    def usable_share(self) -> float:
        """Share of devices that the task can use and that are ever eligible."""
        return self.population.reach * (1 - self.population.unreachable)

    @property
    def serving_share(self) -> float:
        """Share of devices that are usable and members (`participation.members`)."""
        return self.usable_share * self.participation.member_share

    @property
    def evaluation(self) -> EvaluationValues | None:
        """The model that the devices evaluate; None if the scenario is no evaluation."""
        values = None if self.analytics is None else self.analytics.values
        return values if isinstance(values, EvaluationValues) else None

    @property
    def _fixed_latency(self) -> str:
        latency = self.latency
        setup = f"latency.setup_seconds={latency.setup_seconds:g}"
        if not latency.secagg_seconds:
            return setup
        return f"{setup} with latency.secagg_seconds={latency.secagg_seconds:g}"

    @model_validator(mode="after")
    def _buffered_rounds_can_be_run(self) -> Self:
        rounds, usable = self.rounds, self.device_ids * self.serving_share
        if rounds.buffer is None:
            return self
        # A device has at most one report in a buffer, and trains one model at a time.
        for key, devices in (
            ("buffer.concurrency", rounds.buffer.concurrency),
            ("report_goal", rounds.report_goal),
        ):
            if devices > usable:
                raise ValueError(
                    f"rounds.{key}={devices}: exceeds the {usable:.0f} devices that are usable by "
                    "population.reach and unreachable; lower it or raise the population"
                )
        encoding, clipping = self.privacy.sent, self.privacy.clipping
        if isinstance(encoding, ModularTable):
            raise ValueError(
                f"{encoding.place}.kind={encoding.kind!r} with rounds.mode='buffered': a device "
                "must encode its update for the round that sums it, but cannot know which buffer "
                "its report will be in; use fixed_point"
            )
        if clipping.later_norms is not None:
            raise ValueError(
                f"privacy.clipping.kind={clipping.kind!r} with rounds.mode='buffered': reports in "
                "one buffer would be clipped to the norms of different versions; use fixed or "
                "per_layer"
            )
        return self

    @model_validator(mode="after")
    def _classes_override_keys_that_there_are(self) -> Self:
        # This refuses keys of classes that the availability does not have.
        _ = self.of_classes
        return self

    @model_validator(mode="after")
    def _rounds_fit_the_population(self) -> Self:
        usable = self.device_ids * self.serving_share
        if not self.availability.can_be_thinned and self.rounds.sampler == "thinning":
            raise ValueError(
                "rounds.sampler='thinning' asks whether a device is eligible at one moment, but a "
                "custom availability function only lists intervals; leave the sampler out"
            )
        # Ids from 2^40 on belong to held-out clients, and joining devices need ids too.
        if self.device_ids >= 2**40:
            raise ValueError(
                f"population.joins_per_day={self.population.joins_per_day:g}: makes more than 2^40 "
                "devices in total; lower it"
            )
        if self.rounds.report_goal > self.device_ids:
            raise ValueError(
                f"rounds.report_goal={self.rounds.report_goal}: must not exceed population.devices="
                f"{self.population.devices}; lower the goal or raise the population"
            )
        # Buffered rounds do not select devices together; their own validator checks their numbers.
        is_buffered = self.rounds.buffer is not None
        if not is_buffered and self.rounds.selection_target > usable:
            raise ValueError(
                f"rounds.report_goal={self.rounds.report_goal}: with "
                f"over_selection={self.rounds.over_selection:g} a round selects "
                f"{self.rounds.selection_target} devices, more than the {usable:.0f} that are "
                "usable by population.reach and unreachable; lower the goal or raise the population"
            )
        timeout_seconds = 60 * self.rounds.report_timeout_minutes
        has_timeout = not is_buffered and self.rounds.uploads is None
        if has_timeout and self.latency.fixed_seconds >= timeout_seconds:
            raise ValueError(
                f"rounds.report_timeout_minutes={self.rounds.report_timeout_minutes:g}: no device "
                f"can report in time, because {self._fixed_latency} already takes as long; raise "
                "the timeout"
            )
        if self.privacy.strategy is not None:
            self._check_strategy(self.privacy.strategy)
        if self.privacy.target is None:
            _ = self.update_noise_multiplier  # refuses counts that use up the noise multiplier
        # A round with fewer reports than the sample could not train the promised number of devices.
        least = self.rounds.least_accepted
        takes_a_sample = self.training.enabled and not self.trains_whole_rounds
        if takes_a_sample and self.training.cohort_sample > least:
            fewest = (
                f", of which only {least} may be accepted"
                if least < self.rounds.report_goal
                else ""
            )
            raise ValueError(
                f"training.cohort_sample={self.training.cohort_sample}: must not exceed "
                "rounds.report_goal="
                f"{self.rounds.report_goal}{fewest}; lower cohort_sample"
            )
        return self

    @model_validator(mode="after")
    def _phrases_have_devices_of_their_own(self) -> Self:
        needed = sum(each.phrases * each.devices for each in self.training.planted)
        if needed > self.population.devices:
            raise ValueError(
                f"training.planted: the phrases need {needed} devices, and population.devices="
                f"{self.population.devices}; plant fewer"
            )
        return self

    def _check_strategy(self, strategy: Strategy) -> None:
        count = self.rounds.count
        if strategy.most_rounds is not None and count > strategy.most_rounds:
            raise ValueError(
                f"rounds.count={count}: the {strategy.kind} mechanism was made for "
                f"only {strategy.most_rounds} rounds; lower the count or optimise the mechanism "
                "for more rounds"
            )
        try:
            strategy.check_noise_growth(count)
        # The key is added to the message, because a mechanism does not know its own.
        except InputError as error:
            raise ValueError(f"privacy.mechanism: {error}") from None
        # Between two restarts of C the noise is scaled by one clip norm, which must not change.
        clipping = self.privacy.clipping
        if clipping.later_norms is None:
            return
        recurrence = strategy.recurrence(count)
        # The first round does not count: no noise precedes it.
        restarts = [each for each in range(1, count) if recurrence.begins_anew(each)]
        if not restarts:
            raise ValueError(
                f"privacy.clipping.kind={clipping.kind!r}: the clip norm can change only when "
                f"the mechanism restarts, and this {strategy.kind} mechanism does not restart "
                f"within rounds.count={count} rounds; use kind 'tree' with "
                "restarts, or 'identity', which needs none"
            )
        wrong = [each for each in clipping.changes if each not in restarts]
        if wrong:
            known = ", ".join([*map(str, restarts[:4]), *["..."][: len(restarts) - 4]])
            raise ValueError(
                f"privacy.clipping.steps: from_round={wrong[0]} is no round below rounds.count="
                f"{count} in which the mechanism restarts; choose from {known}"
            )

    @model_validator(mode="after")
    def _held_devices_can_be_held(self) -> Self:
        given = self.participation
        key = "hold" if given.hold is not None else "later"
        if (given.hold or given.later) and self.rounds.mode != "on-device":
            raise ValueError(
                f"participation.{key} with rounds.mode={self.rounds.mode!r}: devices are held only "
                "if rounds select their devices together; use rounds.mode='on-device'"
            )
        if given.hold is not None:
            ids = given.hold.devices.device_ids
            if ids.size and int(ids[-1]) >= self.device_ids:
                raise ValueError(
                    f"participation.hold={given.hold.file!r} names device {ids[-1]}, but devices "
                    f"have ids from 0 to {self.device_ids - 1}; correct the file"
                )
        return self

    @model_validator(mode="after")
    def _starts_of_rounds_are_known(self) -> Self:
        for each in self.participation.policies or ():
            is_of_starts = each.kind == "most_per_period" and not each.wait_hours
            if is_of_starts and self.rounds.mode != "on-device":
                raise ValueError(
                    f"participation.policies: {each.keys_by_rule['time']} with rounds.mode="
                    f"{self.rounds.mode!r}: participations are counted by the starts of rounds "
                    "that select their devices together; use participations=1 with hours, or "
                    "rounds.mode='on-device'"
                )
        return self

    @model_validator(mode="after")
    def _uploads_are_of_no_round(self) -> Self:
        if self.rounds.uploads is not None and self.participation.separation:
            raise ValueError(
                f"{self.participation.keys_by_rule['rounds']}: it keeps a device's rounds apart, "
                "but with rounds.mode='upload-then-train' a device contributes an upload, which "
                "belongs to no round; use rounds.uploads.schedule to keep rounds apart (cyclic, "
                "min_sep), and the policy swor to keep uploads apart"
            )
        return self

    @model_validator(mode="after")
    def _a_question_can_be_answered(self) -> Self:
        analytics, uploads = self.analytics, self.rounds.uploads
        has_cost = getattr(self.data, "vocabulary_cost", None) is not None
        if self.privacy.stop_at is not None and (analytics is not None or has_cost):
            raise ValueError(
                "privacy.stop_at: the budget counts updates of a model and not the answers of "
                "analytics or of a private vocabulary; leave stop_at out"
            )
        if analytics is None:
            return self
        if self.evaluation is not None:
            if self.rounds.mode != "on-device" or self.training.enabled:
                raise ValueError(
                    f"analytics.values.kind='evaluation' with rounds.mode={self.rounds.mode!r}, "
                    f"training.enabled={self.training.enabled}: devices of a round evaluate the "
                    "model of another task; use 'on-device', and leave training out"
                )
        elif uploads is None or not uploads.takes_all:
            raise ValueError(
                "analytics: a question is answered from all uploads of a window; set "
                "rounds.mode='upload-then-train' and rounds.uploads.schedule.kind='all'"
            )
        by_habit = isinstance(analytics.values, NumberValues) and analytics.values.by_habit
        if by_habit and not self.availability.has_propensities:
            raise ValueError(
                f"analytics.values.by_habit={by_habit:g}: availability.model="
                f"{self.availability.model!r} has no habits; leave by_habit out"
            )
        is_counted = isinstance(self.data, FormedData) and self.data.is_counted
        if isinstance(analytics.values, ExampleValues) and is_counted:
            raise ValueError(
                "analytics.values.kind='examples': the tokens or classes are counted over all "
                "devices without noise; set data.vocabulary_file for text, or data.values"
            )
        return self

    @model_validator(mode="after")
    def _devices_send_in_every_round(self) -> Self:
        """Refuses noise of devices for a model that the server trains on stored uploads."""
        is_model = self.training.enabled or self.analytics is None
        if self.rounds.uploads is not None and is_model and self.privacy.sent.adds_noise:
            raise ValueError(
                f"privacy.trust.kind={self.privacy.trust.kind!r} with rounds.uploads: devices "
                "upload data, on which a program of the server trains, so they add no noise to a "
                "round; use the trust 'server' or 'enclave', or rounds without uploads"
            )
        return self

    @model_validator(mode="after")
    def _poisson_samples_are_secret(self) -> Self:
        """Refuses settings that would reveal the number of devices in a Poisson sample."""
        weighting = self.training.weighting
        if not self.trains_whole_rounds:
            # Without noise a denominator only weighs devices, whatever their number is.
            is_noised = self.privacy.strategy is not None
            if is_noised and not isinstance(weighting, MeanWeighting):
                raise ValueError(
                    f"training.weighting.kind={weighting.kind!r}: its denominator and noise are "
                    "meant for Poisson samples, which these rounds are not; use 'mean', "
                    "rounds.uploads.schedule.kind='poisson' or 'cyclic_poisson', or "
                    "privacy.mechanism='none'"
                )
            return self
        # Without training nothing is divided, so the default weighting is harmless.
        if self.training.enabled and isinstance(weighting, MeanWeighting):
            raise ValueError(
                "training.weighting.kind='mean': it divides by the number of devices in a round, "
                "which is secret in a Poisson sample; use 'fixed' or 'clipped'"
            )
        sent = self.privacy.sent
        if isinstance(sent, ModularTable):
            raise ValueError(
                f"{sent.place}.kind={sent.kind!r}: it is made for at most "
                "rounds.report_goal devices, but a Poisson sample may have more, or none; use "
                "'fixed_point'"
            )
        if self.privacy.clipping.counts_short:
            raise ValueError(
                f"privacy.clipping.kind={self.privacy.clipping.kind!r}: it divides a count by the "
                "number of devices in a round, which is secret in a Poisson sample; use 'fixed' or "
                "'per_layer'"
            )
        return self

    @model_validator(mode="after")
    def _budget_permits_a_round(self) -> Self:
        strategy = self.privacy.strategy
        # The table `privacy` refuses a budget without noise.
        if self.privacy.stop_at is None or strategy is None:
            return self
        start = np.zeros(1, np.int64)
        # The sensitivity of one participation in a run of one round is |C[0, 0]|.
        norm = float(strategy.gram_entries(start, start, 1)[0]) ** 0.5
        for what, most, first in self.privacy.beyond_budget(norm):
            raise ValueError(
                f"privacy.stop_at.{what}={given(most)}: the first round already spends "
                f"{up(first, 6)}, so nothing would be committed; raise it, or "
                f"privacy.noise_multiplier={given(self.privacy.noise_multiplier)}"
            )
        return self

    @model_validator(mode="after")
    def _devices_can_be_excluded(self) -> Self:
        privacy, strategy = self.privacy, self.privacy.strategy
        # The table `privacy` refuses limits without noise.
        if privacy.at_limit != "exclude" or strategy is None:
            return self
        if self.rounds.mode != "on-device":
            unknown = (
                "a device starts training before it is known which buffer its report will be in"
                if self.rounds.mode == "buffered"
                else "the schedule draws which uploads take part, and excluding devices would "
                "change its probabilities"
            )
            raise ValueError(
                f"privacy.at_limit='exclude' with rounds.mode={self.rounds.mode!r}: {unknown}; use "
                "'stop', or rounds.mode='on-device'"
            )
        limit = privacy.largest_sensitivity
        # The table `privacy` refuses this `at_limit` without a budget.
        assert limit is not None
        try:
            check_can_be_filtered(strategy, self.rounds.count, limit)
        except InputError as error:
            raise ValueError(f"privacy.at_limit='exclude': {error}") from None
        return self

    @property
    def count_noise(self) -> float | None:
        """Standard deviation of the noise on a round's count of short updates, for a full cohort;
        None if nothing is counted, and without noise."""
        if self.privacy.strategy is None:
            return None
        return self.privacy.clipping.noise_on_count(self.rounds.report_goal)

    @property
    def update_noise_multiplier(self) -> float:
        """Noise multiplier of the sums of updates: privacy.noise_multiplier after the share that is
        spent on the count of short updates; 0 without noise."""
        if self.privacy.strategy is None:
            return 0.0
        if self.privacy.target is not None:
            key, most = self.privacy.target
            raise InputError.of(
                f"privacy.{key}",
                most,
                "states no noise multiplier yet",
                "pass the scenario that `fedray.calibrated` returns",
            )
        z, count_noise = self.privacy.noise_multiplier, self.count_noise
        return z if count_noise is None else update_noise_multiplier(z, count_noise)

    @classmethod
    def from_toml(
        cls, path: str | Path, overrides: Sequence[str] = (), *, trust_code: bool = False
    ) -> Self:
        """Reads a scenario file; `overrides` are `table.key=value` texts, with values as in TOML,
        but paths relative to the working directory.

        Raises:
            ScenarioError: the file is not a scenario.
            InputError: code of the scenario was found by its digest, as in traces, without
            `trust_code`.
        """
        file = Path(path)

        def read(given: Sequence[str]) -> Self:
            tables = read_tables(file, given)
            # Without this check `tasks` would be reported as an unknown key, without a remedy.
            if "tasks" in tables:
                raise ScenarioError(
                    f"scenario {str(file)!r} has several tasks, but only one is possible here; "
                    "give a scenario without [tasks], or the trace of one task"
                )
            return cls.from_tables(tables, source=str(file), directory=file.parent)

        scenario = naming_overrides(read, str(file), overrides)
        # Trust is checked last, when it is known which code was found and where.
        if not trust_code:
            scenario.demand_trust()
        return scenario

    @classmethod
    def from_tables(
        cls,
        tables: dict[str, Any],
        source: str = "scenario",
        directory: Path = Path(),
        *,
        is_recorded: bool = False,
    ) -> Self:
        """Returns a scenario from nested dicts, as a TOML or JSON parser returns them.

        Args:
            tables: nested dicts.
            source: name of the tables in messages.
            directory: folder of the files, which are looked up by SHA-256 first (as in traces),
                then by name.
            is_recorded: whether the tables come from a trace or run, so that `demand_trust`
                distrusts all their code.

        Raises:
            ScenarioError: the tables are not a scenario.
        """
        context = {"directory": directory, "is_recorded": is_recorded}
        return cls._validated(tables, source, context)

    @classmethod
    def _validated(cls, tables: dict[str, Any], source: str, context: dict[str, Any]) -> Self:
        # Whoever asks a question need not say that no model is trained.
        if "analytics" in tables:
            tables = {"training": {"enabled": False}, **tables}
        if "training" in tables:  # as it is meant, so that mistakes are found where they are
            tables = {**tables, "training": with_task_as_table(tables["training"])}
        try:
            return cls.model_validate(tables, context=context)
        except ValidationError as error:
            needed = needed_by_question(tables)
            raise refused(ScenarioError, source, error, cls, tables, needed) from None

    def to_tables(self) -> dict[str, Any]:
        """Returns every key with its value, defaults included, as nested dicts of TOML and JSON
        types; keys that are None are left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """Returns the scenario as TOML, defaults included; reading it back gives an equal value."""
        return tomli_w.dumps(self.to_tables())

    def with_overrides(self, *overrides: str) -> Self:
        """Returns a copy with `table.key=value` texts applied. Raises ScenarioError."""
        return naming_overrides(self._overridden, "scenario", overrides)

    def scaled(self, scale: float) -> Self:
        """Returns a smaller, faster copy without training, with nearly the same min-sep.

        Args:
            scale: factor, at most 1, on population, joins, report goal and the concurrency of
                buffered rounds.

        Raises:
            InputError: the factor is not in (0, 1], or leaves a report goal below 20.
        """
        if not 0 < scale <= 1:
            raise InputError.of(
                "scale", scale, "must be above 0 and at most 1", "1 is the whole population"
            )
        # The timer is not scaled: devices per report, and so the min-sep, hardly change.
        if scale == 1:
            return self.with_overrides("training.enabled=false")
        full = self.rounds.report_goal
        goal = round(full * scale)
        if goal < 20:
            rule = f"leaves a report goal of {goal}"
            raise InputError.of("scale", scale, rule, f"raise it to {20 / full:.2g} or more")
        # The rounded goal, not `scale`, is the factor: min-sep depends on devices per report.
        keys = []
        if self.rounds.buffer is not None:
            concurrency = max(1, round(self.rounds.buffer.concurrency * goal / full))
            keys.append(f"rounds.buffer.concurrency={concurrency}")
        return self.with_overrides(
            *keys,
            f"population.devices={round(self.population.devices * goal / full)}",
            f"population.joins_per_day={self.population.joins_per_day * goal / full}",
            f"rounds.report_goal={goal}",
            "training.enabled=false",
        )

    def _overridden(self, overrides: Sequence[str]) -> Self:
        tables = self.to_tables()
        for override in in_order(overrides):
            apply_override(tables, override)
        mechanism = self.privacy.mechanism
        # Contents in memory are reused, so that a copy does not read the files again.
        known = {mechanism.sha256: mechanism.matrix} if isinstance(mechanism, MatrixFile) else {}
        contents = {table.sha256: table for table in self.content_files}
        foreign = self.data.foreign_places if isinstance(self.data, NamesDataFiles) else set()
        context = {"matrices": known, "contents": contents, "foreign": foreign}
        return self._validated(tables, "scenario", context)

    @property
    def digest(self) -> str:
        """SHA-256 of the content, defaults included. The name, the description and the paths of
        files do not count."""
        tables = {
            key: value
            for key, value in self.to_tables().items()
            if key not in ("name", "description")
        }
        # The content of files counts by its digest, so they may have any path.
        for key in FILE_KEYS:
            *path, name = key.split(".")
            table = functools.reduce(lambda each, part: each.get(part, {}), path, tables)
            table.pop(name, None)
        # The order of keys in a file has no meaning, so it must not matter here.
        return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def read_tables(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the tables of a scenario file as written, named after the file if they have no name.

    Args:
        path: the file.
        overrides: texts `table.key=value` to apply.

    Raises:
        ScenarioError: the file cannot be read, or is not TOML.
    """
    file = Path(path)
    try:
        tables = parse_toml(read_input(file))
    except FileNotFoundError:
        raise ScenarioError(
            f"scenario {str(file)!r} does not exist; name a file, or a scenario that ships, "
            "such as quickstart"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(
            f"scenario {str(file)!r} cannot be read ({error}); give a TOML text file"
        ) from None
    except ValueError as error:  # wrong syntax, or numbers or nesting beyond the parser's limits
        raise ScenarioError(
            f"scenario {str(file)!r} is not valid TOML: {error}; correct it there"
        ) from None
    # An invalid file name leaves the default.
    if re.fullmatch(NAME_PATTERN, file.stem) and len(file.stem) <= 80:
        tables.setdefault("name", file.stem)
    for override in in_order(overrides):
        apply_override(tables, override, file.parent)
    return tables


def _with_keys(availability: Availability, device_class: DeviceClass) -> Availability:
    """Returns an availability with the keys of a class. Raises ValueError, in one line."""
    kind, keys = type(availability), device_class.availability or {}
    told = f"population.classes, class {device_class.name!r}: availability"
    if isinstance(availability, ContentFile) or "model" in keys:
        raise ValueError(
            f"{told}: a class may override only keys of availability.model="
            f"{availability.model!r}, and none if that model reads a file; leave the table out"
        )
    # Validating the whole table also checks rules that involve the class's keys and others.
    tables = merged(availability.model_dump(), keys, ("availability",))
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        raise ValueError(f"{told}: {explain(error, kind, tables)}") from None


def _without_content(table: BaseModel) -> BaseModel:
    """Returns a copy of a table that names its file but does not hold the content.

    Reading the content from the copy raises AttributeError.
    """
    if not isinstance(table, MatrixFile | ContentFile):
        return table
    # No validator runs here, since that would read the file again.
    return type(table).model_construct(
        **{name: getattr(table, name) for name in type(table).model_fields}
    )


def _as_given(table: BaseModel) -> BaseModel:
    """Returns a copy of a table without its cached properties, which would be sent with it."""
    copy = table.model_copy()
    # Unlike private attributes, such as the content, cached properties are stored with the fields.
    for name in set(vars(copy)) - set(type(table).model_fields):
        del vars(copy)[name]
    return copy
