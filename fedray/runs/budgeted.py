"""Runs within the budget of a ledger: reserved at their worst case before they start, and charged
with the privacy that every device really spent."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

from fedray.audit.any_run import worst_participation
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.ledger import Ledger
from fedray.audit.ledger_charges import answer_parts, noise_of, vocabularies_of
from fedray.audit.ledger_lines import Promise
from fedray.audit.noise import ServerNoise, most_changed, permitted_noise, released
from fedray.audit.observers import against_operator, noise_against_operator
from fedray.audit.questions import charged_plan, vocabulary_cost
from fedray.base.errors import InputError, Refused
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.participation import MinSep
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.contributions import last_report
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
    that of a device (Bun and Steinke 2016, Proposition 1.9), and epsilon of answers m times that of
    a device. A run that is refused for a mistake in its arguments, or at its first release, has
    released nothing, so its reservation is cancelled.

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
    most = _most_devices(tasks, opened.unit)
    vocabularies = [each for task in tasks for each in vocabularies_of(task, most)]
    if worst is None:
        worst = [worst_participation(task) for task in tasks]
    paired = zip(tasks, worst, strict=True)
    promises = [
        each
        for task, own in paired
        for each in worst_case(task, own, most_devices=most, observer=opened.observer)
    ]
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


def _most_devices(tasks: Sequence[Scenario], unit: str) -> int:
    """Returns the most devices of a unit of a budget.

    Raises:
        InputError: the budget is of persons and nothing says who owns the devices, or a question
            has several trust models; both are one refusal.
    """
    owners, problems = tasks[0].population.owners, list[str]()
    if unit == "person" and owners is None:
        problems.append(
            "population.owners must be given for a budget of persons; give the table, such as "
            "{ mean_devices = 1.3, most_devices = 3 }"
        )
    for task in tasks:
        try:
            _ = charged_plan(task) if task.analytics is not None else None
        except InputError as error:
            problems.append(str(error))
    if len(problems) > 1:
        raise InputError("; and ".join(problems))
    if problems:
        raise InputError(problems[0])
    return 1 if unit == "device" or owners is None else owners.most_devices


def worst_case(
    scenario: Scenario, worst: MinSep, *, most_devices: int = 1, observer: str = "models"
) -> Iterator[Promise]:
    """Yields the most that a device, or a person with several, may spend on the model and on the
    question of any run of a scenario.

    Args:
        scenario: scenario of the run.
        worst: its `worst_participation` of a device.
        most_devices: most devices of a person; 1 for a device.
        observer: party against whom it is spent, models or operator.

    Raises:
        InputError: nothing protects from the observer, or as `worst_rho`.
    """
    of_operator, analytics = observer == "operator", scenario.analytics
    if analytics is None or scenario.training.enabled:
        kind = "zcdp" if scenario.privacy.sent.adds_noise else "gaussian"
        amount = most_devices**2 * worst_rho(scenario, worst, observer)
        yield Promise(release=kind, amount=amount)
    if of_operator and (cost := vocabulary_cost(scenario)) is not None:
        against_operator(cost.trust)
    if analytics is not None:
        if of_operator:
            against_operator(analytics.trust[0].kind)
        for release, _, of_window in answer_parts(scenario, most_devices):
            yield Promise(release=release, amount=worst.max_participations * of_window)


def worst_rho(scenario: Scenario, worst: MinSep, observer: str = "models") -> float:
    """Returns the largest rho that a device may spend on the model of any run of a scenario. A
    budget (`privacy.stop_at`) bounds it too.

    Args:
        scenario: scenario of the run.
        worst: its `worst_participation`.
        observer: party against whom it is spent, models or operator.

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
    own = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
    noise = permitted_noise(own, scenario, strategy)
    if observer == "operator":
        noise = noise_against_operator(privacy.trust, noise)
    return rho_of(released(noise, min(value, limit or value), most_changed(noise, [worst])))


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
