"""Runs within the budget of a ledger: reserved at their worst case before they start, and charged
with the privacy that every device really spent."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.ledger import Ledger
from fedray.audit.ledger_charges import noise_of, vocabularies_of
from fedray.audit.ledger_lines import Promise
from fedray.audit.noise import ServerNoise, permitted_noise, released
from fedray.audit.questions import charged_plan
from fedray.base.errors import InputError, Refused
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.participation import MinSep
from fedray.runs.calibrated import worst_participation
from fedray.runs.sustainable import last_report
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.several_tasks import tasks_of
from fedray.server.rounds.stored import MOST_FAILURES
from fedray.trace.imported import ImportedTrace
from fedray.trace.learned_from import is_trained_run, opened_training
from fedray.trace.reader import Trace
from fedray.trace.several_tasks import TasksRun, is_of_tasks
from fedray.trace.trained import TRAINING, TrainedRun


@contextmanager
def reserved(
    ledger: str | Path | None,
    scenario: Scenario | SeveralTasks,
    start: date | None,
    placement: Placement | None = None,
    *,
    worst: Sequence[MinSep] | None = None,
    is_resumed: bool = False,
    claim: Claim | None = None,
) -> Iterator[Callable[[], None]]:
    """Within: the worst case of a run is reserved in a ledger, if one is given.

    The worst cases of models and questions add up. For a person with m devices, rho is at most m^2
    that of a device (Bun and Steinke 2016, Proposition 1.9). A run that is refused for a mistake in
    its arguments, or at its first release, has released nothing, so its reservation is cancelled.

    Args:
        ledger: directory of the ledger.
        scenario: scenario of the run.
        start: day on which the run starts (UTC); None for today.
        placement: workers of the run, whose aggregator may draw its noise on a GPU.
        worst: `worst_participation` of each task; None to compute them.
        is_resumed: whether the run continues, under its open reservation if there is one.
        claim: claim that the run ensures, which a ledger may demand.

    Yields:
        Function to call when devices take part: from then on models may have been released, so the
        reservation stays even if the run fails for a mistake, such as damaged data.

    Raises:
        InputError: the run does not ensure the ledger's claim, might exceed the budget, its worst
            case has no bound, it shares its noise with another release, or the budget is of persons
            and the scenario has no owners.
    """
    begun: list[None] = []
    if ledger is None:
        yield lambda: begun.append(None)
        return
    tasks = [task.scenario for task in tasks_of(scenario)]
    opened = Ledger.open(ledger)
    if is_resumed and opened.reservation_of(scenario.digest, start) is not None:
        yield lambda: begun.append(None)
        return
    vocabularies = [each for task in tasks for each in vocabularies_of(task)]
    if worst is None:
        worst = [worst_participation(task) for task in tasks]
    paired = zip(tasks, worst, strict=True)
    promises = [each for task, own in paired for each in worst_case(task, own)]
    if opened.unit == "person":
        promises = _of_persons(tasks, promises)
    days = max(_last_release(each) for each in tasks) / 86_400.0
    day = start or datetime.now(UTC).date()
    device = "cuda" if placement is not None and placement.aggregator_gpus else "cpu"
    noise = [each for task in tasks for each in noise_of(task, device)]
    found = opened.reserve(scenario.digest, promises, day, days, noise, vocabularies, claim)
    try:
        yield lambda: begun.append(None)
    except (InputError, Refused) as error:
        # A run whose first release was refused has released nothing either.
        if isinstance(error, Refused) or not begun:
            found.cancel(len(found.entries))
        raise


def _of_persons(tasks: Sequence[Scenario], promises: Sequence[Promise]) -> list[Promise]:
    owners = tasks[0].population.owners
    if owners is None:
        raise InputError.of(
            "population.owners", None, "must be given for a budget of persons", "give the table"
        )
    if any(task.analytics is not None or vocabularies_of(task) for task in tasks):
        raise InputError(
            "the scenario has a question or a private vocabulary, and what a person with several "
            "devices spends on it is not known; run it within a budget of devices"
        )
    most = owners.most_devices
    return [e.model_copy(update={"amount": e.amount * most**2}) for e in promises]


def worst_case(scenario: Scenario, worst: MinSep) -> Iterator[Promise]:
    """Yields the most that a device may spend on the model and on the question of any run of a
    scenario, given its `worst_participation`. Raises InputError; see `worst_rho`."""
    asks = scenario.analytics is not None
    if not asks or scenario.training.enabled:
        kind = "zcdp" if scenario.privacy.encoding.adds_noise else "gaussian"
        yield Promise(release=kind, amount=worst_rho(scenario, worst))
    if asks:
        most = float(worst.max_participations)
        yield Promise(release=charged_plan(scenario).event.to_json(), amount=most)


def worst_rho(scenario: Scenario, worst: MinSep) -> float:
    """Returns the largest rho that a device may spend on the model of any run of a scenario, given
    its `worst_participation`. A budget (`privacy.stop_at`) bounds it too.

    Raises:
        InputError: the run adds no noise, or no theorem covers the rules.
    """
    privacy = scenario.privacy
    strategy, limit = privacy.needed_strategy(), privacy.largest_sensitivity
    try:
        value = strategy.participation_sensitivity(worst).value
    except ValueError as error:
        if limit is None:
            raise InputError(
                f"the worst case of the run is unknown: {error}; set privacy.stop_at"
            ) from None
        value = limit
    noise = permitted_noise(ServerNoise(privacy.noise_multiplier, scenario.count_noise), scenario)
    return min(value, limit or value) ** 2 * rho_of(released(noise, 1.0))


def _last_release(scenario: Scenario) -> float:
    """Returns the latest time at which a run may release a round, seconds since start."""
    rounds, uploads = scenario.rounds, scenario.rounds.uploads
    if uploads is None:
        return last_report(scenario)
    # Each failed attempt takes as long as a round.
    attempts = MOST_FAILURES if uploads.unresolved_share else 1
    return (
        uploads.seconds * uploads.windows + 60.0 * uploads.round_minutes * rounds.count * attempts
    )


def charge_run(
    ledger: str | Path,
    run: Trace | TasksRun | TrainedRun | ImportedTrace | str | Path,
    start: date | None = None,
    release: str = "",
    claim: Claim | None = None,
) -> Ledger:
    """Charges a finished run, a training or a log to a ledger, once.

    Args:
        ledger: directory of the ledger.
        run: trace of one task or of several, training or log, opened or by its directory.
        start: day on which the run started (UTC); None for that of its reservation.
        release: name of the release of a log; see fedray/audit/ledger.py.
        claim: mechanism and noise of a log.

    Raises:
        InputError: see `Ledger.charge`, or `run` is one of several tasks.
    """
    opened = Ledger.open(ledger)
    if isinstance(run, TrainedRun) or (isinstance(run, str | Path) and is_trained_run(run)):
        trained, trace, scenario = opened_training(run)
        if trained.path.resolve() != (trace.path / TRAINING).resolve():
            audit = audit_trace(trace, claim=claim, scenario=scenario)
            return opened.charge([audit], start, release, trained)
        # The run's own model is the release of the run.
        run = trace
    elif isinstance(run, str | Path) and is_of_tasks(run):
        run = TasksRun.open(run)
    traces = run.traces.values() if isinstance(run, TasksRun) else [run]
    released_any = [e for e in traces if not isinstance(e, Trace) or e.committed_rounds]
    audits = [audit_trace(each, claim=claim) for each in released_any]
    # The reservation is of all tasks, so one task must not end it.
    if not isinstance(run, TasksRun) and "task" in audits[0].trace.run:
        raise InputError(
            f"trace {str(audits[0].path)!r} is one of several tasks; charge the directory of the "
            "whole run"
        )
    return opened.charge(audits, start, release)
