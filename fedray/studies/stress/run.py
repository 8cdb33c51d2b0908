"""Stress tests: an estimate, and the truths that it meets. Truths are settings, a trace, or
simulated runs of a scenario."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.noise import PlannedNoise
from fedray.audit.participation import Patterns, read_patterns
from fedray.base.errors import InputError, Starved
from fedray.base.kept import cache_folder
from fedray.base.parsing import parse_toml
from fedray.base.part_done import Announcement
from fedray.base.regular_file import read_input
from fedray.mechanisms.accounting.limits import check_delta
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.loss import Objective, check_objective
from fedray.mechanisms.optimize.design import MechanismRequest
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.report.subject import Subject
from fedray.report.subjects import opened_trace_subject, setting_of
from fedray.runs.design import shown_names
from fedray.runs.learning import check_model, scenario_of, scenario_to_train
from fedray.runtime.placement import Placement
from fedray.runtime.tasks import run_jobs
from fedray.scenario import Scenario
from fedray.scenario.shipped import find_scenario, shipped_scenario_files
from fedray.studies.compare import Comparison
from fedray.studies.equal_privacy import compare_mechanisms
from fedray.studies.forecast.forecast import SEEDS as CONTINUATIONS
from fedray.studies.forecast.forecast import continuations, observed
from fedray.studies.plan import limits_of_runs
from fedray.studies.simulated import StudyCache, Truth, enforced_in, simulate_runs, simulated
from fedray.studies.stress.judged import Judged, Stressed, StressRow, made
from fedray.studies.stress.outcome import case_of, estimate_of, grouped
from fedray.studies.stress.result import PUBLISHED, StressResult
from fedray.studies.sweep.sweep import shipped_sweeps
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.reader import Trace

MECHANISMS = ("blt", "banded-toeplitz", "tree")
"""Mechanisms that are judged by default: those that are made in seconds."""
PRINTED = ((430, 100, 90), (1280, 400, 300), (2350, 400, 440), (2000, 1000, 2001))
"""Rounds, estimated and actual min-sep of the runs of PUBLISHED."""
SEEDS = 20
MOST_CANDIDATES = 20
"""Most estimates that are tried for a recommendation."""
Listener = Callable[[str], None]
_Estimate = tuple[Sequence[int], Sequence[int]]
"""Estimates of b, and of k; without the latter, the k that fit."""


def stress(
    subject: Trace | ImportedTrace | Scenario | str | Path | None = None,
    *,
    rounds: int | None = None,
    estimated: Sequence[int | str] = (),
    actual: Sequence[int] = (),
    estimated_participations: Sequence[int] = (),
    actual_participations: Sequence[int] = (),
    epsilon: float = 6.0,
    delta: float | None = None,
    mechanisms: Sequence[str] = MECHANISMS,
    loss: Objective = "rms",
    seeds: int | None = None,
    what_ifs: Sequence[str] = (),
    forecast: bool = False,
    claim: Claim | None = None,
    train: bool = False,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    placement: Placement | None = None,
    trust_code: bool = False,
    on_progress: Listener = lambda _: None,
) -> StressResult:
    """Returns the cost of a misestimated min-sep for each mechanism.

    Each mechanism is made for the estimate (n, b, k), and its noise multiplier is the least for
    `epsilon` under it. Truths are settings (`rounds` and `actual`); a trace, by what its rules
    enforce; or simulated runs of a scenario, which also recommend an estimate. Without arguments
    the settings are four published ones.

    Args:
        subject: trace, opened or as its directory; or scenario, its file, or its shipped name.
        rounds: n of settings; for a trace the planned rounds, by default those of its scenario.
        estimated: estimated min-seps; for a scenario also "planned", the default, from a plan.
        actual: true min-seps of settings.
        estimated_participations: estimated participations k; default: ceil(n / b).
        actual_participations: true participations of settings; default: ceil(n / b).
        epsilon: target of the noise, under the estimate.
        delta: delta of epsilon; default: that of the trace or scenario, else 1e-10.
        mechanisms: kinds, files of mechanisms, or names such as blt-400.
        loss: "rms" or "max", for which kinds are made, and of which errors and regrets are.
        seeds: runs of a scenario, with seeds from its own on, 20 by default; or trainings of each
            mechanism, 3 by default.
        what_ifs: overrides of the scenario, "table.key=value", each a condition with the same
            number of runs.
        forecast: whether the truths are forecasts of a trace at `rounds`: the continuations with
            the 5 %, the median and the 95 % quantile of min-sep.
        claim: claim with the timer of the forecast of a log.
        train: whether models are trained on the trace at equal epsilon, with every mechanism made
            for each estimate and for the truth, and without noise.
        overrides: keys of the trainings to change, "training.key=value" or "data.key=value".
        out: directory of the trainings, which an interrupted one continues; default: a new one.
        placement: cluster for runs and mechanisms; default: a local one for a scenario, else this
            process.
        trust_code: whether code of a custom task that came with the trace may be run.
        on_progress: called with lines of progress.

    Raises:
        InputError: an argument is missing, out of range, or does not apply to the subject.
        TraceError: the trace cannot be read.
        Starved: no run of the scenario commits its rounds.
        RunFailed: a task dies for good.
    """
    if not 0 < epsilon < math.inf:
        raise InputError.of("epsilon", epsilon, "must be positive and finite")
    if not mechanisms or len(set(mechanisms)) < len(mechanisms):
        raise InputError.of("mechanisms", ",".join(mechanisms), "must name each once")
    check_objective(loss)
    judged = tuple(
        Judged.named(given, loss, name)
        for given, name in zip(mechanisms, shown_names(mechanisms), strict=True)
    )
    opened = opened_subject(subject)
    scenario = scenario_of(opened) if isinstance(opened, Trace) else opened
    noise = PlannedNoise.of(scenario) if isinstance(scenario, Scenario) else PlannedNoise()
    own = scenario.privacy.delta if isinstance(scenario, Scenario) else 1e-10
    check_delta(delta := own if delta is None else delta)
    designs = cache_folder("designs")
    cache = StudyCache()
    blank = Stressed(judged, (), Truth(None), epsilon, delta, designs, noise=noise)
    left_out = blank.left_out()
    if len(left_out) == len(judged):
        rule = f"is not for this trust: {next(iter(left_out.values()))}"
        raise InputError.of("mechanisms", ",".join(mechanisms), rule)
    blank = replace(blank, mechanisms=tuple(e for e in judged if e.name not in left_out))
    words = [each for each in estimated if isinstance(each, str)]
    if words and (words != ["planned"] or not isinstance(opened, Scenario)):
        rule = "must be whole numbers, or of a scenario planned"
        raise InputError.of("estimated", words[0], rule)
    numbers = [each for each in estimated if not isinstance(each, str)]
    _check_min_seps(estimated=numbers, actual=actual)
    estimate = numbers, estimated_participations
    settings = {"actual": actual, "actual_participations": actual_participations}
    simulations = {"seeds": seeds, "what_ifs": what_ifs}
    trainings = {"train": train, "overrides": overrides, "out": out, "trust_code": trust_code}
    _check_overrides(overrides, train=train)
    if claim is not None and (not forecast or not isinstance(opened, ImportedTrace)):
        raise InputError.of(
            "claim", claim.digest, "applies to the forecast of a log", "leave it out"
        )
    if isinstance(opened, Scenario):
        _refuse("a scenario", rounds=rounds, forecast=forecast, **settings, **trainings)
        bases = {None: opened, **{each: opened.with_overrides(each) for each in what_ifs}}
        runs = _simulated(bases, seeds, blank, placement or Placement(), cache, on_progress)
        cases = _cases_of_scenario(bases, runs, estimate, has_plan=bool(words))
    elif opened is not None:
        # Without a training there is one truth.
        _refuse("a trace", **settings, **({"what_ifs": what_ifs} if train else simulations))
        rules = scenario if isinstance(scenario, Scenario) else None
        if forecast:
            _refuse("a forecast", train=train)
            cases = _cases_of_forecast(opened, rules, claim, rounds, estimate, blank, on_progress)
        else:
            cases = _cases_of_trace(opened, rules, rounds, estimate, blank)
    else:
        _refuse("settings", forecast=forecast, **simulations, **trainings)
        cases = _cases_of_settings(rounds, estimate, actual, actual_participations, blank)
    # Settings and a trace take less time than a cluster to start.
    where = placement or (
        Placement() if isinstance(opened, Scenario) else Placement(1, "in-process")
    )
    if train and isinstance(opened, Trace):
        _check_training(opened, overrides, trust_code=trust_code)
    cases = replace(cases, jobs=_with_candidates(cases.jobs))
    rows, shared_rows = cases.judged(where, on_progress)
    comparison = None
    if train:
        assert isinstance(opened, Trace | ImportedTrace), "others were refused above"
        comparison = _trained(
            opened,
            cases.jobs[0],
            loss=loss,
            overrides=overrides,
            seeds=3 if seeds is None else seeds,
            out=out,
            placement=placement,
            on_progress=on_progress,
            trust_code=trust_code,
        )
    own = opened if isinstance(opened, Scenario) else None
    return StressResult(
        cases.name, epsilon, delta, cases.estimates, rows, comparison, tuple(cache.warnings),
        cases.planned, own, shared_rows=shared_rows, loss=loss,
        trace=_subject_of(opened, scenario), left_out=left_out or None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Cases:
    """Estimates, and the truths that they meet."""

    name: str
    """Name of the subject; empty for settings."""
    estimates: tuple[MinSep, ...]
    jobs: list[Stressed]
    """A job for each truth."""
    planned: tuple[MinSep, ...] = ()
    """Estimate of a plan for a scenario; empty if it was not made."""
    shared: tuple[MinSep, ...] = ()
    """Estimates that are judged under every truth, beside those of each job; empty with one
    condition."""

    def judged(
        self, placement: Placement, on_progress: Listener
    ) -> tuple[tuple[StressRow, ...], tuple[StressRow, ...]]:
        """Returns the rows of the estimates of each job, and those of `shared`."""
        jobs = [
            replace(each, estimates=tuple(dict.fromkeys((*each.estimates, *self.shared))))
            for each in self.jobs
        ]
        _make_mechanisms(jobs, placement, on_progress)
        done = run_jobs(
            Stressed.rows, jobs, placement, lambda counts: on_progress(counts.line("truths judged"))
        )
        own: list[StressRow] = []
        shared: list[StressRow] = []
        for place, found in sorted(done):
            job = self.jobs[place]
            for row in (replace(each, days=job.truth.days) for each in found):
                estimate = MinSep(*estimate_of(row))
                if estimate in job.estimates:
                    own.append(row)
                if estimate in self.shared:
                    shared.append(row)
        # One truth has the rows of an estimate together.
        return tuple(row for case in grouped(own, case_of) for row in case), tuple(shared)


def _cases_of_scenario(
    bases: Mapping[str | None, Scenario],
    runs: Sequence[Stressed],
    estimate: _Estimate,
    *,
    has_plan: bool,
) -> _Cases:
    """Returns the cases of simulated runs, with the estimate of a plan too if it is wanted. The
    estimates of a what-if are those of the changed scenario. Raises InputError without an
    estimate."""
    scenario = bases[None]
    planned = _planned(scenario, runs, estimate[1])
    wanted: tuple[MinSep, ...] = ()
    if has_plan or not estimate[0]:
        if not planned:
            rule = "must be given, because a plan estimates it from at least two runs"
            raise InputError.of("estimated", None, rule)
        wanted = planned
    given: dict[str | None, tuple[MinSep, ...]] = {}
    jobs = []
    for what_if, base in bases.items():
        n, cap = base.rounds.count, base.participation.max_participations
        given[what_if] = tuple(dict.fromkeys((*_participations(n, *estimate, cap), *wanted)))
        own = [each for each in runs if each.what_if == what_if]
        tried = tuple(dict.fromkeys((*given[what_if], *_candidates(n, own))))
        jobs += [replace(each, estimates=tried) for each in own]
    estimates = tuple(dict.fromkeys(each for several in given.values() for each in several))
    shared: tuple[MinSep, ...] = ()
    if len(bases) > 1:
        common = [each for each in estimates if all(each in several for several in given.values())]
        longest = max(each.rounds.count for each in bases.values())
        shared = tuple(dict.fromkeys((*common, *_candidates(longest, runs))))
    return _Cases(scenario.name, estimates, jobs, planned, shared)


def _cases_of_trace(
    trace: Trace | ImportedTrace,
    rules: Scenario | None,
    rounds: int | None,
    estimate: _Estimate,
    blank: Stressed,
) -> _Cases:
    """Returns the case of a trace with the scenario `rules`, None for a log. Raises InputError."""
    if rounds is None:
        rounds = trace.committed_rounds if rules is None else rules.rounds.count
    estimates = _participations(rounds, *estimate)
    if not estimates:
        raise InputError.of("estimated", None, "must be given: the min-sep that was planned")
    truth = _happened(trace, read_patterns(trace), rules)
    if truth.participation is None:
        raise InputError(f"trace {str(trace.path)!r}: {truth.note}")
    return _Cases(str(trace.path), estimates, [replace(blank, truth=truth, estimates=estimates)])


def _cases_of_forecast(
    trace: Trace | ImportedTrace,
    rules: Scenario | None,
    claim: Claim | None,
    rounds: int | None,
    estimate: _Estimate,
    blank: Stressed,
    on_progress: Listener,
) -> _Cases:
    """Returns a case for each of three continuations of a trace up to its planned rounds. Raises
    InputError."""
    if rounds is None:
        raise InputError.of("rounds", None, "must be given: the planned last round of the forecast")
    estimates = _participations(rounds, *estimate)
    if not estimates:
        raise InputError.of("estimated", None, "must be given: the min-sep that was planned")
    of = observed(trace, rounds, scenario=rules, claim=claim)
    _, paths = continuations(of.history, of.known, rounds, CONTINUATIONS, None, on_progress)
    ruling = of.history.rules
    has_rules = rules is not None and ruling.timer_seconds > 0
    truths = []
    for quantile in (0.05, 0.5, 0.95):
        order = np.argsort([each.min_seps[-1] for each in paths], kind="stable")
        place = int(order[round(quantile * (order.size - 1))])
        path = paths[place]
        truths.append(Truth(path.end, enforced=path.enforced if has_rules else None))
    jobs = [replace(blank, truth=each, estimates=estimates) for each in dict.fromkeys(truths)]
    name = f"forecast of {trace.path}, {ruling.text}"
    return _Cases(name, estimates, jobs)


def _cases_of_settings(
    rounds: int | None,
    estimate: _Estimate,
    actual: Sequence[int],
    actual_participations: Sequence[int],
    blank: Stressed,
) -> _Cases:
    """Returns the cases of settings; without any, the published ones. Raises InputError."""
    name = ""
    if any((rounds, *estimate, actual, actual_participations)):
        pairs = _settings(rounds, estimate, actual, actual_participations)
    else:
        name = PUBLISHED
        pairs = [
            (_participations(n, (b,), ()), *_participations(n, (true,), ()))
            for n, b, true in PRINTED
        ]
    estimates = tuple(dict.fromkeys(each for several, _ in pairs for each in several))
    jobs = [replace(blank, estimates=each, truth=Truth(true)) for each, true in pairs]
    return _Cases(name, estimates, jobs)


def _trained(
    trace: Trace | ImportedTrace,
    job: Stressed,
    *,
    overrides: Sequence[str],
    loss: Objective,
    on_progress: Listener,
    **where: Any,
) -> Comparison:
    """Trains with each mechanism that can run, made for each estimate and for the truth."""
    strategies, reasons = job.strategies()
    for name, reason in reasons.items():
        on_progress(Announcement(f"{name} is not trained: {reason}"))
    with tempfile.TemporaryDirectory(prefix="fedray-stress-") as folder:
        files = []
        for name, (strategy, purpose) in strategies.items():
            files.append(str(Path(folder) / f"{name}.json"))
            write_strategy(strategy, files[-1], purpose)
        return compare_mechanisms(
            trace,
            [*files, "none"],
            epsilon=job.epsilon,
            delta=job.delta,
            loss=loss,
            scenario=scenario_of(trace).with_overrides(*overrides),
            on_progress=on_progress,
            **where,
        )


def opened_subject(
    subject: Trace | ImportedTrace | Scenario | str | Path | None,
) -> Trace | ImportedTrace | Scenario | None:
    """Opens the subject of a stress test, unless it is open. Raises InputError, TraceError."""
    if subject is None or not isinstance(subject, str | Path):
        return subject
    if Path(subject).is_dir():
        return open_trace(subject)
    name = str(subject)
    is_sweep = name in shipped_sweeps() and name not in shipped_scenario_files()
    if Path(subject).is_file():
        # A file that is no TOML is refused as a scenario.
        with suppress(OSError, ValueError):
            is_sweep = "vary" in parse_toml(read_input(Path(subject)))
    if is_sweep:
        raise InputError(f"{name!r} is a sweep of parameters; run `fedray sweep {name}`")
    return Scenario.from_toml(find_scenario(subject))


def _subject_of(
    opened: Trace | ImportedTrace | Scenario | None, scenario: Scenario | ImportedTrace | None
) -> Subject | None:
    """Returns the subject of a trace, with the setting of its scenario; None for another
    subject."""
    if not isinstance(opened, Trace | ImportedTrace):
        return None
    setting = setting_of([scenario]) if isinstance(scenario, Scenario) else ""
    return replace(opened_trace_subject(opened), setting=setting)


def _check_training(trace: Trace, overrides: Sequence[str], *, trust_code: bool) -> None:
    # Mechanisms may take hours to make, so a model that cannot be trained is refused before.
    to_train = scenario_to_train(trace, scenario_of(trace).with_overrides(*overrides))
    if not trust_code:
        to_train.demand_trust_of_training()
    check_model(to_train)


def _check_min_seps(**given: Sequence[int]) -> None:
    for name, values in given.items():
        if (least := min(values, default=1)) < 1:
            raise InputError.of(name, least, "must be at least 1")


def _check_overrides(overrides: Sequence[str], *, train: bool) -> None:
    if overrides and not train:
        rule = "applies to a scenario, or to trainings on a trace"
        raise InputError.of("overrides", overrides[0], rule, "give `train=True`")
    for each in overrides:
        if not each.startswith(("training.", "data.")):
            rule = "must set a key of [training] or [data], because the trace has the others"
            raise InputError.of("overrides", each, rule)


def _refuse(subject: str, **unused: object) -> None:
    for name, value in unused.items():
        if value:
            raise InputError.of(name, value, f"does not apply to {subject}", "leave it out")


def _participations(
    rounds: int, min_seps: Sequence[int], participations: Sequence[int], cap: int | None = None
) -> tuple[MinSep, ...]:
    """Returns every combination; by default with the participations that fit, up to a cap."""
    return tuple(
        MinSep(rounds, min_sep, most)
        for min_sep in min_seps
        for most in participations or (min(most_of_device(rounds, min_sep), cap or rounds),)
    )


def _settings(
    rounds: int | None,
    estimate: _Estimate,
    actual: Sequence[int],
    actual_participations: Sequence[int],
) -> list[tuple[tuple[MinSep, ...], MinSep]]:
    """Returns the estimates of each truth."""
    given = {"rounds": rounds, "estimated": estimate[0], "actual": actual}
    for name, value in given.items():
        if not value:
            raise InputError.of(name, None, "must be given", "or give a trace or a scenario")
    assert rounds is not None
    estimates = _participations(rounds, *estimate)
    truths = _participations(rounds, actual, actual_participations)
    return [(estimates, true) for true in truths]


def _happened(trace: Trace | ImportedTrace, patterns: Patterns, rules: Scenario | None) -> Truth:
    """Returns the participation of a trace, with every device's rounds."""
    if patterns.min_sep == 0:
        note = "a device contributed twice to a round, so there is no min-sep to estimate; "
        return Truth(None, note=f"{note}audit the trace with `fedray audit`")
    limits = MinSep(patterns.committed_rounds, patterns.min_sep, patterns.max_participations)
    return Truth(limits, patterns, enforced=enforced_in(trace, rules, patterns))


def _simulated(
    bases: Mapping[str | None, Scenario],
    seeds: int | None,
    blank: Stressed,
    placement: Placement,
    cache: StudyCache,
    on_progress: Listener,
) -> list[Stressed]:
    """Returns a job for each seed of the scenario, and of each what-if."""
    first = bases[None].seed
    count = SEEDS if seeds is None else seeds
    if not 1 <= count <= 1000:
        raise InputError.of("seeds", count, "must be from 1 to 1000", "20 show a 5 % quantile")
    jobs, scenarios = [], []
    for what_if, base in bases.items():
        # A what-if may change the trust or its report goal.
        noise = PlannedNoise.of(base)
        for seed in range(first, first + count):
            jobs.append(replace(blank, seed=seed, what_if=what_if, noise=noise))
            scenarios.append(base.with_overrides(f"seed={seed}", "training.enabled=false"))
    truths = simulate_runs(
        scenarios,
        simulated,
        placement,
        cache,
        lambda counts: on_progress(counts.line("runs simulated")),
    )
    if all(truth.participation is None for truth in truths):
        raise Starved(f"no run commits its rounds; the first one: {truths[0].note}")
    return [replace(job, truth=truth) for job, truth in zip(jobs, truths, strict=True)]


def _planned(
    scenario: Scenario,
    runs: Sequence[Stressed],
    participations: Sequence[int],
) -> tuple[MinSep, ...]:
    """Returns the estimate that a plan makes from the runs, which are at least two, else none."""
    n = scenario.rounds.count
    found = [run.truth for run in runs if run.what_if is None]
    known = [each.min_sep for each in found if each.participation is not None]
    if len(known) < 2:
        return ()
    limits = limits_of_runs(n, known, len(known), scenario.participation)
    return _participations(
        n, (limits.min_sep or n,), participations or (limits.max_participations,)
    )


def _candidates(n: int, runs: Sequence[Stressed]) -> tuple[MinSep, ...]:
    """Returns every b of the truths as estimates for n rounds, of many b as many quantiles; k is
    the most that may happen."""
    truths = [each for run in runs if (each := run.truth.binding) is not None]
    min_seps = sorted({each.min_sep for each in truths})
    count = min(MOST_CANDIDATES, len(min_seps))
    chosen = np.linspace(0, len(min_seps) - 1, count).round().astype(int)
    is_enforced = all(run.truth.enforced for run in runs if run.truth.binding)
    most = max((each.max_participations for each in truths), default=n) if is_enforced else n
    tried = [min_seps[place] for place in chosen]
    return tuple(MinSep(n, b, min(most_of_device(n, b), most)) for b in tried)


def _with_candidates(jobs: Sequence[Stressed]) -> list[Stressed]:
    """Returns the jobs with their estimates, and the truths of the others of the same condition and
    length, as candidates: their mechanisms are made anyway."""

    def others_of(job: Stressed) -> tuple[MinSep, ...]:
        own = job.truth.binding
        known = [each.truth.binding for each in jobs if each.what_if == job.what_if]
        of_length = [each for each in known if each and own and each.rounds == own.rounds]
        return tuple(e for e in dict.fromkeys(of_length) if e not in (own, *job.estimates))

    return [replace(e, candidates=e.estimates, other_truths=others_of(e)) for e in jobs]


def _make_mechanisms(jobs: list[Stressed], placement: Placement, on_progress: Listener) -> None:
    """Makes all mechanisms that are searched for, each once, so that no two jobs do."""
    wanted: dict[MechanismRequest, None] = {}
    for job in jobs:
        truths = () if job.truth.binding is None else (job.truth.binding,)
        for mechanism in job.mechanisms:
            wanted |= dict.fromkeys(mechanism.searched_for(job.estimates, truths))
    for _ in run_jobs(
        partial(_make, jobs[0].designs),
        list(wanted),
        placement,
        lambda counts: on_progress(counts.line("mechanisms made")),
    ):
        pass


def _make(designs: Path, request: MechanismRequest) -> None:
    # A mechanism that cannot be made becomes the note of its rows.
    with suppress(ValueError, ArithmeticError):
        made(request, designs)
