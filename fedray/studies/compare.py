"""Trained runs of one trace side by side.

Runs of one trace have the same participations, so they only differ in their settings. Runs whose
settings only differ in `training.seed` are a group: seeds are then a sample, with a mean and an
interval (fedray/studies/paired.py). Groups are compared by the differences of runs that share the
trace and the seed.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated, Any, ClassVar, NamedTuple

import pyarrow as pa

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.questions import vocabulary_cost
from fedray.audit.verdict import AuditVerdict, named_epsilons
from fedray.base.document import IfAny, InJson, InPlace, Key, Keys, NotInJson, Only
from fedray.base.dotted import flat
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.base.rounding import DIGITS, as_set, counted, decimals_of, in_words, up
from fedray.scenario import Scenario
from fedray.scenario.scenario import FILE_KEYS, TRAINED_TABLES
from fedray.studies.paired import (
    CONFIDENCE,
    MeanInterval,
    interval_text,
    mean_interval,
    paired_difference,
    seeds_to_tell,
)
from fedray.studies.reach import Reach, reach_of
from fedray.trace.learned_from import open_trained, scenario_of_trained, trace_of
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun, metric_of_answer
from fedray.wire.messages import Evaluated, Measured, Metric

PAIRED = (
    "The interval of a mean is mostly the spread between seeds, which draw their own data and "
    "noise. A difference leaves it out: it is the mean, over seeds that both settings have, of the "
    "difference of two runs that share the trace and the seed. Settings are told apart by "
    "differences only, on this trace; those of one seed by the standard errors of two evaluations."
)
"""Note for a reader of the figures."""
COSTS = (
    "Uploads are those of one device in one round. Seconds per round are the median of rounds on "
    "the machine that trained, so they only compare settings of one machine."
)
"""Note for a reader of the costs."""

PLANNED = (
    "The enforced epsilon of a training that stopped is that of all its planned rounds, wherever "
    "it stops."
)
"""Note for a reader of the epsilons of trainings of which some stopped."""

MOST_NAMED = 4
"""Largest number of settings that a sentence names one by one."""

EQUAL_PRIVACY = 0.01
"""Relative difference up to which epsilons are taken to be equal."""
MECHANISM = "privacy.mechanism"
"""The table whose kind names a group."""
_Spent = dict[str, dict[str, float | None]]
"""Privacy by figure (epsilon, rho), then by guarantee (observed, enforced)."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that only differ in the seed of the training."""

    label: str
    """Its name beside the others: mechanism, and the other settings in which groups differ."""
    runs: NotInJson[Mapping[int, TrainedRun]]
    """The runs by their seeds."""
    settings: Mapping[str, Any]
    """Values of the keys in which groups differ, without keys that this group does not have."""
    epsilon: Mapping[str, float | None] | None
    """Epsilon by guarantee: `observed` and `enforced`. None if the trace is not known."""
    rho: Mapping[str, float | None] | None
    """zCDP, by guarantee as `epsilon`."""
    cell: NotInJson[Mapping[str, Any]] = field(default_factory=dict)
    """Value of each varied key of a sweep whose cell it is."""

    @property
    def seeds(self) -> InJson[list[int]]:
        """Seeds of its runs, in order."""
        return sorted(self.runs)

    @property
    def first(self) -> TrainedRun:
        """The run of the smallest seed."""
        return self.runs[self.seeds[0]]

    @property
    def trainings(self) -> str:
        """Number of its runs, with their seeds."""
        first, *others = self.seeds
        if not others:
            return f"1 training (seed {first})"
        is_range = self.seeds == [*range(first, others[-1] + 1)]
        named = f"{first} to {others[-1]}" if is_range else in_words(self.seeds, MOST_NAMED)
        return f"{counted(len(self.seeds), 'training')} (seeds {named})"

    @property
    def name(self) -> str:
        """Its label for sentences, in which commas separate groups."""
        label = self.label.replace(",", "")
        # A file's name or a given one says nothing of noise.
        is_of_kind = label.partition(" ")[0] == "none"
        return f"no noise{label.removeprefix('none')}" if is_of_kind else label

    @property
    def privacy(self) -> dict[str, Any]:
        """The table `privacy` of its scenarios, as JSON."""
        return self.first.document["scenario"]["privacy"]

    @property
    def mechanism(self) -> InJson[str]:
        """Kind of the mechanism."""
        return self.privacy["mechanism"]["kind"]

    @property
    def noise_multiplier(self) -> InJson[float | None]:
        """Noise multiplier of its runs; None without noise."""
        return None if self.mechanism == "none" else self.privacy["noise_multiplier"]

    @property
    def rounds(self) -> str:
        """Trained rounds of its runs, as "7 of 60", "7 to 9 of 60" or "60"."""
        numbers = sorted(map(_rounds, self.runs.values()))
        ends = " to ".join(f"{each:,}" for each in dict.fromkeys((numbers[0], numbers[-1])))
        planned = self.first.document["scenario"]["rounds"]["count"]
        return f"{ends} of {planned:,}" if numbers[0] < planned else ends

    @property
    def sample(self) -> str:
        """Data of its evaluations; see `sample_of`."""
        return sample_of(self.runs.values())

    def finals(self, metric: str) -> dict[int, float]:
        """A metric after the last round, by seed."""
        return {seed: self.runs[seed].last_evaluation()[metric].value for seed in self.seeds}


class ComparedRun(NamedTuple):
    """A run of a group."""

    run: Annotated[
        TrainedRun, Keys("path evaluated bits_per_parameter bytes_per_upload seconds_per_round")
    ]
    seed: int
    """Seed of the training."""
    rounds: int
    """Rounds that were trained."""
    metrics: Mapping[Annotated[str, "metric"], Measured]
    """Metrics after the last round."""


class ComparedGroup(NamedTuple):
    """A group beside the best one."""

    group: InPlace[Group]
    means: Mapping[Annotated[str, "metric"], MeanInterval]
    """Means of the last metrics over its seeds."""
    differences: Mapping[Annotated[str, "metric"], MeanInterval] | None
    """Mean differences to the best group, over seeds of both; None for the best."""
    runs: list[ComparedRun]
    """Its runs, by their seeds."""


@dataclass(frozen=True)
class Comparison(DrawnResult):
    """Trained runs of one trace, grouped."""

    TABLES: ClassVar[str] = "fedray.studies.compare_page:comparison_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.compare_page:comparison_subject"
    FIGURES: ClassVar[str] = "fedray.studies.compare_page:comparison_figures"
    PAGE: ClassVar[str] = "fedray.studies.compare_page:comparison_page"

    trace_digest: str
    """Digest of the trace that all of them were learned from, or from its first rounds."""
    metrics: Annotated[tuple[Metric, ...], Only("name unit better")]
    """Metrics of their evaluations."""
    groups: NotInJson[tuple[Group, ...]]
    """In the order of their first runs."""
    delta: float
    """delta of every epsilon."""
    assumptions: tuple[str, ...]
    """Assumptions of the epsilons; empty if the trace is not known."""
    axes: NotInJson[tuple[str, ...]] = ()
    """Varied keys of a sweep whose cells are the groups: the horizontal axis, then the others."""
    calibrated_to: NotInJson[str] = ""
    """Guarantee whose epsilon all groups with noise were calibrated to; empty if not known."""
    reach: IfAny[Reach] = None
    """What each run had spent when it first reached a value of the answer's metric, if asked."""
    whose: NotInJson[str] = ""
    """Whose the largest epsilon is not, and that it is weak, in sentences; empty if neither."""
    ended: NotInJson[str] = ""
    """How the trainings ended, in a sentence with a space after it, if rounds are missing."""

    @property
    def differ_in_rounds(self) -> bool:
        """Whether some runs have fewer rounds than others, because their trainings stopped."""
        return len({_rounds(run) for group in self.groups for run in group.runs.values()}) > 1

    @cached_property
    def differing_keys(self) -> InJson[list[str]]:
        """Keys of the scenario in which groups differ, sorted."""
        return sorted({key for group in self.groups for key in group.settings})

    @property
    def basis(self) -> InJson[str]:
        """Guarantee of which all groups with noise have one epsilon, up to 1 %: `enforced` or
        `observed`, whose epsilons are closer; empty if neither, or the trace is not known."""
        kinds = [self.calibrated_to] if self.calibrated_to else ["enforced", "observed"]
        kind = min(kinds, key=self._spread)
        return kind if self._spread(kind) <= 1 + EQUAL_PRIVACY else ""

    @property
    def privacy(self) -> str:
        """Epsilon of all groups with noise and its guarantee: "epsilon 4 (enforced)"; empty if they
        have several, or it is not known."""
        if not self.basis:
            return ""
        return f"epsilon {_brief(max(self._epsilons(self.basis).values()))} ({self.basis})"

    @property
    def metric(self) -> Metric:
        """Metric of the answer: accuracy if the task has it, else the first."""
        return metric_of_answer(self.metrics)

    @cached_property
    def ranked(self) -> list[Group]:
        """Groups with noise, or all if none has, by their mean of that metric, the best first."""
        return sorted(self._noisy or self.groups, key=lambda each: fmean(self.badness(each)))

    def badness(self, group: Group) -> list[float]:
        """Last values of that metric by seed, less is better; infinite if the training diverged."""
        # A model that is NaN has an accuracy, and no loss.
        losses = group.finals(self.metrics[0].name)
        return [
            math.inf
            if group.runs[seed].divergence or not math.isfinite(value + losses[seed])
            else -self.metric.sign * value
            for seed, value in group.finals(self.metric.name).items()
        ]

    @property
    def none_is_best(self) -> str:
        """Why no setting is best, in a sentence; empty if one is."""
        best, metric = self.ranked[0], self.metric
        if math.inf in self.badness(best):
            return "No setting converged in every training, so none is best."
        starts = [each.document.get("start", {}).get(metric.name) for each in best.runs.values()]
        if None in starts:
            return ""
        if fmean(self.badness(best)) < -metric.sign * fmean(starts):
            return ""
        return (
            f"No setting is better than before its training, so none is best: {best.name} has "
            f"{self._mean_text(best, metric)}, and had {fmean(starts):.4f}."
        )

    def _together(self, metric: str) -> tuple[int, int]:
        """Numbers of pairs and of metrics whose intervals hold together: the best of many is
        chosen, and further metrics are looked at after the answer's."""
        of_metrics = 1 if metric == self.metric.name else len(self.metrics)
        return max(1, math.comb(len(self.ranked), 2)), of_metrics

    def _confidence(self, metric: str) -> float:
        """Confidence of one pair by one metric, so that of all together is 95 % (Bonferroni)."""
        return 1 - (1 - CONFIDENCE) / math.prod(self._together(metric))

    def simultaneous(self, metric: str) -> str:
        """Returns the scope of the intervals of differences by a metric, as the end of a
        sentence."""
        pairs, metrics = self._together(metric)
        if pairs * metrics == 1:
            return "a 95 % interval (Student's, over seeds)"
        of_metrics = f" and {metrics} metrics" if metrics > 1 else ""
        each = 100 * self._confidence(metric)
        return (
            f"an interval at 95 % for {counted(pairs, 'pair')} of settings{of_metrics} together "
            f"(Student's, over seeds; {each:.2f} % each, Bonferroni)"
        )

    def _deviations(self, metric: str) -> float:
        """Standard errors on either side of zero within which a difference may be chance."""
        return NormalDist().inv_cdf((1 + self._confidence(metric)) / 2)

    @property
    def answer(self) -> InJson[str]:
        """Paired differences of the best group in a sentence: from training without noise, from
        worse groups, and from groups that the runs do not distinguish from it; then its mean."""
        (best, *others), metric = self.ranked, self.metric
        silent = [each for each in self.groups if each not in self.ranked]
        if none := self.none_is_best:
            means = [f" {each.label}: {self._mean_text(each, metric)}." for each in silent]
            return f"{self.ended}{none}{''.join(means)} Evaluated on {self.sample}."
        # The unit is said once.
        _, unit = shown_unit(metric)
        units = chain([f" {unit} of {metric.title}".replace("  ", " ")], repeat(""))
        doubtful = [each for each in (*silent, *others) if self.may_be_chance(each)]
        sure = [each for each in (*silent, *others) if each not in doubtful]
        lost = [each for each in sure if metric.sign * self.deciding(each).mean > 0]
        told = [each for each in sure if each not in lost]
        said = [f"{best.name} loses {self._by(each, units)} to {each.name}" for each in lost]
        if told:
            than = [f"{each.name} ({self._by(each, units)})" for each in told]
            said.append(f"{best.name} is better than {_few(than)}")
        if doubtful:
            apart = [f"{each.name} ({self._by(each, units)})" for each in doubtful]
            further = "".join(map(self._by_further, doubtful))
            said.append(f"{best.name} cannot be told apart from {_few(apart)}{further}")
        mean = f"{best.name} has {self._mean_text(best, metric)}"
        if self.privacy:
            mean += f" at {self.privacy}"
        if any(self.difference(each, metric.name).count == 1 for each in (*silent, *others)):
            mean += "; differences are of one seed, within the errors of two evaluations"
        first = f"{'; '.join(said)}. " if said else ""
        return f"{self.ended}{first}{mean}. Evaluated on {self.sample}."

    @property
    def sample(self) -> str:
        """Data of the evaluations of all runs; see `sample_of`."""
        return sample_of(run for group in self.groups for run in group.runs.values())

    @property
    def headline(self) -> str:
        return self.answer

    def _by_further(self, group: Group) -> str:
        """Returns which of a group and the best is better by metrics besides the answer's, as the
        end of a sentence; empty if none tells them apart."""
        said, pair = "", [self.ranked[0].name, group.name]
        for metric in self.metrics:
            found = self.deciding(group, metric=metric)
            if metric.name != self.metric.name and found.is_from_zero:
                by = self._by(group, iter([f" {shown_unit(metric)[1]}".rstrip()]), metric)
                wins, over = reversed(pair) if metric.sign * found.mean > 0 else pair
                said += f", but by {metric.title} {wins} is better than {over} ({by})"
        return said

    def _by(self, group: Group, units: Iterator[str], metric: Metric | None = None) -> str:
        """Returns how far a group is from the best, and half of the interval that decides; also
        whether it is better or worse, unless that is decided."""
        metric = metric or self.metric
        found = self.deciding(group, metric=metric)
        if not math.isfinite(found.mean):
            return "diverged" if found.count else "no common seed"
        scale, _ = shown_unit(metric)
        which = (" worse", " better")[metric.sign * found.mean > 0]
        is_open = not found.is_from_zero
        unit, lead = next(units) + which * is_open, "which is " * is_open
        mean = scale * abs(found.mean)
        half = scale * (found.high - found.low) / 2
        few = "; 2 seeds are too few to tell" if found.is_of_too_few else ""
        if few or not half > 0:
            return f"{lead}{mean:.{1 if scale > 1 else 4}f}{unit}{few}"
        # One digit of the interval is as far as the difference is known.
        decimals = max(1, -math.floor(math.log10(half)))
        ends = sorted(math.copysign(scale, found.mean) * end for end in (found.low, found.high))
        if math.isclose(ends[1] - mean, half, rel_tol=1e-9):
            return f"{lead}{mean:.{decimals}f} ± {half:.{decimals}f}{unit}"
        return f"{lead}{mean:.{decimals}f} [{ends[0]:.{decimals}f}, {ends[1]:.{decimals}f}]{unit}"

    @property
    def warnings(self) -> InJson[tuple[str, ...]]:
        """Reasons why the answer may not be due to the compared settings, in sentences."""
        found: list[str] = []
        ensured = self._epsilons("enforced")
        spent = ensured or self._epsilons("observed")
        if spent and not self.basis:
            found.append(
                f"Epsilon differs by more than {100 * EQUAL_PRIVACY:g} % "
                f"({_epsilons_text(spent)}), so "
                "differences are due to the noise as well; give all runs the same "
                "privacy.target_epsilon."
                f"{f' {PLANNED}' if self.differ_in_rounds else ''}"
            )
        if self.basis == "observed":
            only = f"only {_epsilons_text(ensured)}" if ensured else "none"
            found.append(
                "Epsilon is that of the recorded participations (observed), on which no guarantee "
                f"for a deployment may rest; the rules ensure {only}."
            )
        best, *others = self.ranked
        if others and (hidden := self._hidden_by_seeds(others[0])):
            found.append(hidden)
        # Seeds share their held-out devices, so more seeds do not make this error smaller.
        if others and self._is_within_errors(others[0]):
            pair = f"{best.name} and {others[0].name}"
            says = f"The held-out set is too small to tell {pair} apart by {self.metric.title}"
            if not self.may_be_chance(others[0]):
                says = f"The seeds tell {pair} apart on these held-out devices, not on others"
            found.append(
                f"{says}: their difference is below {self._deviations(self.metric.name):.2f} "
                "standard errors of two evaluations, taken as independent; "
                f"{_more_data(self.groups[0].first.evaluated)}."
            )
        about: dict[str, list[str]] = {}
        for group in self.groups:
            # The seed with most warnings, a diverged one first.
            one = max(group.runs.values(), key=lambda run: (run.divergence > "", len(run.warnings)))
            for each in one.warnings:
                about.setdefault(each, []).append(group.name)
        found += [f"{_few(names)}: {said}" for said, names in about.items()]
        return (*found, *filter(None, [self.whose]))

    @property
    def _noisy(self) -> list[Group]:
        return [group for group in self.groups if group.noise_multiplier is not None]

    def mean_text(self, group: Group) -> str:
        """Returns the answer's metric and its mean over the seeds of a group, with its interval."""
        return self._mean_text(group, self.metric)

    def _mean_text(self, group: Group, metric: Metric) -> str:
        unit = "" if metric.unit.startswith("share") else metric.unit
        mean = interval_text(self.mean(group, metric.name), ".4f")
        is_best = all(each.has_reached(metric) for each in group.runs.values())
        best = group.first.document["optimum"].get(metric.name)
        ceiling = f" (within the errors its ceiling, {best:.4f})" if is_best else ""
        return f"{metric.title} {mean} {unit}".rstrip() + ceiling

    def _epsilons(self, kind: str) -> dict[str, float]:
        """Returns epsilon by name, of groups with noise; empty unless all are known."""
        spent = {group.name: (group.epsilon or {}).get(kind) for group in self._noisy}
        known = {label: value for label, value in spent.items() if value is not None}
        return known if len(known) == len(spent) else {}

    def _spread(self, kind: str) -> float:
        spent = self._epsilons(kind).values()
        return max(spent) / min(spent) if spent else math.inf

    @property
    def compared(self) -> Annotated[list[ComparedGroup], Key("groups")]:
        """In the order of `groups`; the others are compared with the best."""
        names = [each.name for each in self.metrics]
        found = []
        for group in self.groups:
            runs = [
                ComparedRun(run, seed, run.document["rounds"], run.last_evaluation())
                for seed, run in sorted(group.runs.items())
            ]
            means = {name: self.mean(group, name) for name in names}
            differences = None
            if group is not self.ranked[0]:
                differences = {name: self.difference(group, name) for name in names}
            found.append(ComparedGroup(group, means, differences, runs))
        return found

    def mean(self, group: Group, metric: str) -> MeanInterval:
        """Mean of a metric after the last round, over the seeds of a group; of a share, within 0
        and 1."""
        found = mean_interval(group.finals(metric).values())
        return found.within(0.0, 1.0) if self._is_share(metric) else found

    def difference(self, group: Group, metric: str) -> MeanInterval:
        """Difference of a metric after the last round from the best group, over common seeds, at
        the confidence that decides between them; of shares, within -1 and 1."""
        return self._possible(self._paired(group, metric), metric)

    def _paired(self, group: Group, metric: str) -> MeanInterval:
        finals = self.ranked[0].finals(metric)
        return paired_difference(group.finals(metric), finals, self._confidence(metric))

    def _possible(self, difference: MeanInterval, metric: str) -> MeanInterval:
        return difference.within(-1.0, 1.0) if self._is_share(metric) else difference

    def _is_share(self, metric: str) -> bool:
        (found,) = (each for each in self.metrics if each.name == metric)
        return found.unit.startswith("share")

    def deciding(self, group: Group, metric: Metric | None = None) -> MeanInterval:
        """Difference of a metric, by default the answer's, from the best group, with the interval
        that decides between them: of a single pair, within the errors of its two evaluations, since
        its devices are the sample. NaN if the group diverged, whatever its metric."""
        metric = metric or self.metric
        found = self.difference(group, metric.name)
        if math.inf in self.badness(group):
            return replace(found, mean=math.nan, low=math.nan, high=math.nan)
        if found.count != 1:
            return found
        half = self._deviations(metric.name) * self._error(group, metric.name)
        of_errors = replace(found, low=found.mean - half, high=found.mean + half)
        return self._possible(of_errors, metric.name)

    def may_be_chance(self, group: Group) -> bool:
        """Whether a difference of the answer's metric is of no pairs, or is known and its interval
        holds zero."""
        found = self.deciding(group)
        # Settings without a common seed, such as random trainings, form no pairs.
        return not found.count or (math.isfinite(found.mean) and not found.is_from_zero)

    def _hidden_by_seeds(self, group: Group) -> str:
        """Returns how many seeds would tell a group from the best, in a sentence; empty if they are
        told apart, or the errors of two evaluations exceed the interval over seeds."""
        found, (scale, unit) = self.deciding(group), shown_unit(self.metric)
        half, errors = (found.high - found.low) / 2, self._within(group)
        if found.count < 2 or not self.may_be_chance(group) or half <= errors:
            return ""
        about = self.seeds_that_tell
        pair = f"{self.ranked[0].name} and {group.name}"
        return (
            f"{found.count} seeds are too few to tell {pair} apart by {self.metric.title}: their "
            f"difference is uncertain by ± {scale * half:.3g} {unit} over seeds, and by ± "
            f"{scale * errors:.3g} by the held-out set; {about} seeds would do if mean and spread "
            "stayed the same (estimate)."
        ).replace("  ", " ")

    @property
    def seeds_that_tell(self) -> str | None:
        """How many seeds would tell the best from the next if mean and spread stayed the same, such
        as "about 12"; None without an interval over seeds."""
        if len(self.ranked) < 2:
            return None
        paired = self._paired(self.ranked[1], self.metric.name)
        if paired.count < 2:
            return None
        enough = seeds_to_tell(paired, self._confidence(self.metric.name))
        return f"about {enough:,}" if enough else "over 1,000"

    def _is_within_errors(self, group: Group) -> bool:
        difference = abs(self.deciding(group).mean)
        # An unknown error is NaN, and shows no difference.
        return math.isfinite(difference) and not difference > self._within(group)

    def _within(self, group: Group) -> float:
        """Largest difference within the errors of two evaluations, taken as independent."""
        return self._deviations(self.metric.name) * self._error(group, self.metric.name)

    def _error(self, group: Group, metric: str) -> float:
        common = group.runs.keys() & self.ranked[0].runs.keys()
        errors = [
            each.runs[seed].last_evaluation()[metric].standard_error
            for each in (group, self.ranked[0])
            for seed in common
        ]
        return math.hypot(*errors) / math.sqrt(max(1, len(common)))

    def to_arrow(self) -> pa.Table:
        """The runs, a row each: its group, the varied values of a sweep, its seed, mechanism, noise
        and epsilons, and every metric after the last round."""
        rows = []
        varied = {
            key: all(isinstance(each.cell[key], int | float) for each in self.groups)
            for key in self.axes
        }
        for group in self.groups:
            finals = {metric.name: group.finals(metric.name) for metric in self.metrics}
            for seed in group.seeds:
                values = {name: by_seed[seed] for name, by_seed in finals.items()}
                # A column of Arrow has one type.
                cell = {
                    f"cell.{key}": group.cell[key] if is_number else str(group.cell[key])
                    for key, is_number in varied.items()
                }
                own = {name: getattr(group, name) for name in ("mechanism", "noise_multiplier")}
                spent = {
                    f"epsilon_{kind}": (group.epsilon or {}).get(kind)
                    for kind in ("observed", "enforced")
                }
                own |= {"delta": self.delta, **spent}
                rows.append({"group": group.label, **cell, "seed": seed, **own, **values})
        return pa.Table.from_pylist(rows)

    def __repr__(self) -> str:
        runs = sum(len(group.runs) for group in self.groups)
        return f"<Comparison of {runs} runs: {self.answer}>"


def _more_data(evaluated: Evaluated) -> str:
    """Returns how a model is evaluated on more held-out examples."""
    if evaluated.devices < evaluated.held_out_devices:
        return "raise training.evaluation_devices"
    if evaluated.examples < evaluated.available:
        return "raise training.evaluation_examples"
    return "all held-out examples are used, so hold out more of them"


def compare_runs(
    runs: Sequence[TrainedRun | str | Path],
    trace: Trace | str | Path | None = None,
    delta: float | None = None,
    reach: float | None = None,
) -> Comparison:
    """Compares trained runs of one trace. Those that stopped early have its first rounds.

    Args:
        runs: at least two trained runs: opened, or directories of `train`, or of traces with a
            trained run.
        trace: source of epsilon, the trace that they were learned from; default: where it was when
            one of them was trained. Without a trace no epsilon is known.
        delta: delta of every epsilon; default: that of the first run.
        reach: value of accuracy, or else the first metric; the result then has what each run had
            spent when it was first as good.

    Returns:
        The runs in groups, with means over seeds and paired differences.

    Raises:
        InputError: fewer than two runs, runs of different traces, tasks or metrics, or two runs
            with the same settings and seed; `reach` is not finite.
        TraceError: a run or the trace cannot be read.
    """
    opened = [run if isinstance(run, TrainedRun) else open_trained(run) for run in runs]
    if len(opened) < 2:
        raise InputError(
            f"{len(opened)} trained run{'' if opened else 's'} cannot be compared; give at least 2"
        )
    return comparison_of(opened, trace, delta, reach=reach)


def comparison_of(
    opened: Sequence[TrainedRun],
    trace: Trace | str | Path | None,
    delta: float | None,
    names: Sequence[str] = (),
    reach: float | None = None,
) -> Comparison:
    """As `compare_runs`, of opened runs; one is enough. Groups have `names` if they are given."""
    for other in opened[1:]:
        _demand_comparable(opened[0], other)
    traces = _traces_of(opened, trace)
    gathered = _gathered(opened)
    # Any run of a group will do, since its seed changes neither settings nor epsilon; of some that
    # stopped, one that did so last.
    firsts = [max(group.values(), key=_rounds) for group in gathered]
    tables = [_settings(each) for each in firsts]
    _name_tasks(tables, firsts)
    differing = _differing(tables)
    labels = names or _labels(tables, differing)
    first = opened[0]
    own_delta: float = first.document["scenario"]["privacy"]["delta"]
    delta = own_delta if delta is None else delta
    spent: list[_Spent] = [{}] * len(firsts)
    whose, audits = "", list[Audit]()
    assumptions: tuple[str, ...] = ()
    if traces:
        # The scenario is read back, so that the audit gets strategies and not tables.
        of_runs = [(run, traces[run.trace_digest]) for run in firsts]
        audits = audits_of([(scenario_of_trained(*each), *each) for each in of_runs], delta)
        spent, delta, assumptions = _spent(audits, labels, delta)
        largest = max(audits, key=lambda each: max(named_epsilons(each), default=0.0))
        whose = AuditVerdict(largest).text_about_epsilon
    groups = tuple(
        Group(
            label,
            runs_by_seed,
            {name: table[name] for name in differing if name in table},
            figures.get("epsilon"),
            figures.get("rho"),
        )
        for label, runs_by_seed, table, figures in zip(labels, gathered, tables, spent, strict=True)
    )
    end = traces[first.trace_digest].run["ended"].partition(":")[0] if traces else ""
    why = f" ({end})" if end not in ("", "completed") else ""
    ended = f"{first.short} were trained{why}. " if first.short else ""
    digest, metrics = first.whole_trace_digest, first.task_metrics
    made = Comparison(digest, metrics, groups, delta, assumptions, whose=whose, ended=ended)
    if made.differ_in_rounds:
        said = _few([f"{each.name} {each.rounds}" for each in groups])
        made = replace(made, ended=f"Rounds trained: {said}; each is compared after its last. ")
    if reach is None:
        return made
    by_label = {each.label: each.runs for each in groups}
    return replace(made, reach=reach_of(made.metric, reach, by_label, audits))


def _rounds(run: TrainedRun) -> int:
    return run.document["rounds"]


def _traces_of(runs: Sequence[TrainedRun], given: Trace | str | Path | None) -> dict[str, Trace]:
    """Returns the traces of runs of one trace by their digests, several only if some stopped
    early; empty unless all are at hand. Raises InputError if none was trained on the given one."""
    found: dict[str, Trace] = {}
    if given is not None:
        opened = given if isinstance(given, Trace) else Trace.open(given)
        found[opened.digest] = opened
        known = {digest for run in runs for digest in (run.trace_digest, run.whole_trace_digest)}
        if opened.digest not in known:
            trace_of(runs[0], opened)  # raises
    for run in runs:
        # Runs share traces, so any of them that lies in one will do.
        if run.trace_digest not in found and (own := trace_of(run)) is not None:
            found[run.trace_digest] = own
    return found if all(run.trace_digest in found for run in runs) else {}


def _demand_comparable(first: TrainedRun, other: TrainedRun) -> None:
    for what, of in (
        ("trace", lambda run: run.whole_trace_digest[:12]),
        ("data", _data_of),
        ("metrics", lambda run: ", ".join(each.name + each.in_unit for each in run.task_metrics)),
    ):
        if of(first) != of(other):
            remedy = "compare runs of one trace, with the same data and metrics"
            stopped = [each for each in (first, other) if "stopped" in each.document]
            if what == "trace" and stopped:
                one = stopped[0]
                remedy = (
                    f"{str(one.path)!r} stopped after {one.short}, where its trace ends: train the "
                    f"other on that trace, {str(one.trace_path)!r}"
                )
            raise InputError(
                f"{str(other.path)!r} has {what} {of(other)}, but {str(first.path)!r} has "
                f"{of(first)}; {remedy}"
            )


def _data_of(run: TrainedRun) -> str:
    """Its table `data`, and what is held out, which may differ if a task brings its own."""
    table = flat(run.document["scenario"]["data"], "")
    settings = [f"{key} {value}" for key, value in table if f"data.{key}" not in FILE_KEYS]
    held = run.document["evaluated"]["held_out_devices"]
    return f"{', '.join(settings)} ({held:,} held-out devices)"


def _name_tasks(tables: Sequence[dict[str, Any]], runs: Sequence[TrainedRun]) -> None:
    """Replaces the digests of a user's task and optimizers in the settings [R] of runs [R] by the
    names of their files, with a part of the digest if files of one name differ."""
    for place in ("task", "client.optimizer", "server"):
        key = f"training.{place}.sha256"
        files: dict[str, str] = {}
        for table, run in zip(tables, runs, strict=True):
            if key in table:
                own = run.document["scenario"]["training"]
                for part in place.split("."):
                    own = own[part]
                files[table[key]] = Path(own["file"]).name
        names = list(files.values())
        for table in tables:
            if digest := table.pop(key, None):
                name = files[digest]
                is_only = names.count(name) == 1
                table[f"training.{place}.file"] = name if is_only else f"{name} {digest[:8]}"


def _gathered(runs: Sequence[TrainedRun]) -> list[dict[int, TrainedRun]]:
    """Runs of the same settings, by seed."""
    groups: dict[str, dict[int, TrainedRun]] = {}
    for run in runs:
        # A table of settings cannot be a key, but its text can.
        group = groups.setdefault(json.dumps(_settings(run), sort_keys=True), {})
        seed = run.document["seed"]
        if seed in group:
            raise InputError(
                f"{str(run.path)!r} has the settings and the seed {seed} of "
                f"{str(group[seed].path)!r}; a seed counts once, so leave one of them out"
            )
        group[seed] = run
    return list(groups.values())


def sample_of(runs: Iterable[TrainedRun]) -> str:
    """Returns the data of the evaluations of runs, as "2,481 of 2,481 examples of 50 devices"; if
    it differs between runs, each of them, with "or" between."""
    return " or ".join(dict.fromkeys(run.sample for run in runs))


def _few(parts: Sequence[str]) -> str:
    """Returns the first of some parts of a sentence, and how many more there are."""
    more = len(parts) - MOST_NAMED
    return ", ".join(parts[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def shown_unit(metric: Metric) -> tuple[float, str]:
    """Returns the factor and the unit of differences as readers see them: shares are compared in
    points."""
    return (100.0, "points") if metric.unit.startswith("share") else (1.0, metric.unit)


def _epsilons_text(epsilons: Mapping[str, float]) -> str:
    return _few([f"{name} {_brief(value)}" for name, value in epsilons.items()])


def _brief(figure: float) -> str:
    """Returns an epsilon rounded up to three digits, as "8" or "0.512"."""
    text = up(figure, max(0, decimals_of(figure) - DIGITS + 3))
    return text.rstrip("0").rstrip(".") if "." in text else text


def _settings(run: TrainedRun) -> dict[str, Any]:
    """Settings of a run by dotted key, without its seed and paths of files."""
    scenario = run.document["scenario"]
    pairs = (pair for name in TRAINED_TABLES for pair in flat(scenario.get(name, {}), name))
    # Two copies of a file are one setting: its digest is compared.
    left_out = {"training.seed", "training.stands_for", "privacy.wanted_epsilon", *FILE_KEYS}
    if scenario["privacy"]["mechanism"]["kind"] == "none":
        left_out.add("privacy.noise_multiplier")  # not read
    return {key: value for key, value in pairs if key not in left_out}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same everywhere; a missing key differs from all values."""
    keys = sorted({key for each in settings for key in each})
    # None would not do: it is a value that a key may have.
    missing = object()
    return [
        key
        for key in keys
        if any(each.get(key, missing) != settings[0].get(key, missing) for each in settings)
    ]


def _labels(settings: Sequence[Mapping[str, Any]], differing: Sequence[str]) -> list[str]:
    """A name for each group, no two alike: its mechanism's kind, the kinds of other tables if these
    differ, and the keys that differ among groups of the same kinds."""
    kinds = [key for key in differing if key.endswith(".kind")]
    # A table's kind stands before its other keys.
    keys = sorted(differing, key=lambda key: (key.rpartition(".")[0], key not in kinds, key))
    labels: list[str] = []
    for each in settings:
        # A key of one kind means nothing beside another kind, so only rivals decide.
        rivals = [o for o in settings if all(o.get(kind) == each.get(kind) for kind in kinds)]
        told = {*kinds, *_differing(rivals)} - {f"{MECHANISM}.kind"}
        if len(differing) == 1 and differing[0].endswith(".file"):
            labels.append(str(each[differing[0]]))  # its name says enough
            continue
        parts = [each.get(f"{MECHANISM}.kind", "")]
        # A mechanism's long lists say nothing in a name.
        parts += [
            f"{_short(key.removesuffix('.kind'))} {_value(each[key])}"
            for key in keys
            if key in told and key in each and not isinstance(each[key], list)
        ]
        label = ", ".join(parts)
        # Long lists are left out, so two labels may be alike, which then get numbers.
        alike = sum(known == label or known.startswith(f"{label} #") for known in labels)
        labels.append(f"{label} #{alike + 1}" if alike else label)
    return labels


def _short(key: str) -> str:
    """A key as a word or two: its last part, and the table before it if it lies deeper."""
    if key == "privacy.noise_multiplier":
        return "z"
    return " ".join(key.split(".")[1:][-2:]).replace("_", " ")


def _value(value: Any) -> str:
    # A longer value, such as a digest, would fill the legend. No float is longer.
    text = as_set(value)[:24]
    return text.removesuffix(".0") if isinstance(value, float) else text


def _spent(
    audits: Sequence[Audit], labels: Sequence[str], delta: float
) -> tuple[list[_Spent], float, tuple[str, ...]]:
    """Observed and enforced epsilon and rho of each group by its audit, their delta, and their
    assumptions: each once, with the labels of its groups unless it holds for all."""
    about = {
        sentence: [
            label for label, of in zip(labels, audits, strict=True) if sentence in of.assumptions
        ]
        for audit in audits
        for sentence in audit.assumptions
    }
    assumptions = tuple(
        sentence if len(names) == len(labels) else f"Of {'; '.join(names)}: {sentence}"
        for sentence, names in about.items()
    )
    # What was paid for a vocabulary adds to delta; an epsilon at a smaller one holds at it too.
    deltas = (each.delta for audit in audits for each in audit.basis.by_name.values())
    return [_figures_of(audit) for audit in audits], max(deltas, default=delta), assumptions


def audits_of(
    runs: Sequence[tuple[Scenario, TrainedRun | None, Trace]], delta: float
) -> list[Audit]:
    """Returns audits of the traces of runs with the mechanism, noise and people of each."""
    audits: dict[str, Audit] = {}
    keys = []
    for each, run, trace in runs:
        # An audit reads all participations, and other settings change nothing in it.
        cost = vocabulary_cost(each)
        own = [
            each.to_tables()["privacy"],
            each.training.cohort_sample,
            None if cost is None else cost.model_dump(mode="json"),
            None if run is None else [run.document.get(key) for key in ("people", "stopped")],
            trace.digest,
        ]
        keys.append(json.dumps(own, sort_keys=True))
        if keys[-1] not in audits:
            audits[keys[-1]] = audit_trace(trace, delta=delta, scenario=each, trained=run)
    return [audits[key] for key in keys]


def _figures_of(audit: Audit) -> _Spent:
    # A run without noise has no guarantee, and so no figures. Of a training that stopped, the rules
    # ensure the guarantee of all planned rounds.
    by_name = audit.basis.by_name
    ensured = by_name.get("planned") or by_name.get("enforced")
    found = {"observed": by_name.get("observed"), "enforced": ensured}
    return {
        name: {kind: None if each is None else getattr(each, name) for kind, each in found.items()}
        for name in ("epsilon", "rho")
    }
