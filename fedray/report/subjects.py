"""Subjects of the results of the core, for their captions."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.audit.audit import Audit
from fedray.audit.calibration import TraceCalibration
from fedray.audit.ledger import Ledger
from fedray.audit.privacy_statement import Statement
from fedray.audit.several_tasks import TasksAudit
from fedray.base.rounding import counted
from fedray.report.subject import Subject, condition_of
from fedray.scenario import Scenario
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import OpenedTrace, Trace
from fedray.trace.trained import TrainedRun


def scenario_subject(scenario: Scenario, *overrides: str, runs: str = "one run") -> Subject:
    """Returns the subject of figures of a simulated scenario.

    Args:
        scenario: the scenario, with the overrides.
        overrides: keys that differ from its file, "table.key=value".
        runs: number of its runs.
    """
    devices = counted(scenario.population.devices, "device")
    return Subject(f"{scenario.name} ({devices})", condition_of(overrides), runs)


def condition_in_words(keys: Iterable[str], scenario: Scenario, base: Scenario) -> str:
    """Returns the condition of runs with some keys, "table.key=value", as a paper names it: "twice
    the devices (160,000)", "timer of 24 h". Keys without such words stay as they are.

    Args:
        keys: keys that the condition changes.
        scenario: the scenario with the keys.
        base: the scenario without those of the condition.
    """
    words = [_words_of(key.partition("=")[0].strip(), scenario, base) for key in keys]
    if not words or None in words:
        return condition_of(keys)
    return " and ".join(filter(None, words))


def _words_of(key: str, scenario: Scenario, base: Scenario) -> str | None:
    """Returns a changed key in words; None if it has none."""
    if key == "population.devices":
        devices, before = scenario.population.devices, base.population.devices
        if devices == before:
            return counted(devices, "device")
        ratio = round(devices / before, 2)
        times = {2.0: "twice", 0.5: "half"}.get(ratio, f"{ratio:g} times")
        return f"{times} the devices ({devices:,})" if ratio else None
    timer = scenario.participation.timer_hours
    place = ["rounds.count", "rounds.report_goal", "participation.timer_hours"]
    place += ["rounds.min_minutes_between"]
    if key not in place:
        return None
    if key == "participation.timer_hours":
        return f"timer of {timer:g} h" if timer else "no timer"
    return _settings_of(scenario)[place.index(key)]


def setting_of(scenarios: Iterable[Scenario]) -> str:
    """Returns the rounds, report goal, timer and pace of simulated scenarios, as far as all have
    the same, in a phrase."""
    (first, *others) = map(_settings_of, scenarios)
    return ", ".join(each for each in first if all(each in own for own in others))


def _settings_of(scenario: Scenario) -> list[str]:
    rounds, pace = scenario.rounds, scenario.rounds.min_minutes_between
    timer = scenario.participation.timer_hours
    return [
        counted(rounds.count, "round"),
        f"{counted(rounds.report_goal, 'report')} a round",
        f"timer {timer:g} h" if timer else "no timer",
        "no pace" if pace is None else f"{pace:g} minutes between rounds",
    ]


def trace_subject(trace: OpenedTrace) -> Subject:
    """Returns the subject of figures of one trace: of its whole population, or of the devices that
    a log names."""
    if isinstance(trace, Trace):
        return _of_tables(trace.scenario, "one run")
    assert isinstance(trace, ImportedTrace), "there are two kinds of traces"
    name = Path(trace.run["log"]).name
    return Subject("the log" if name == "log" else f"log {name}", runs="one run")


def opened_trace_subject(trace: OpenedTrace) -> Subject:
    """Returns the subject of a trace with its digest, as comparisons of its trainings have it."""
    of = replace(trace_subject(trace), runs="")
    if not isinstance(trace, Trace):
        return of
    return replace(of, trace=trace.digest[:12])


def trained_subject(trained: TrainedRun) -> Subject:
    """Returns the subject of figures of one training."""
    return _of_tables(trained.document["scenario"], "one training")


def _of_tables(scenario: dict[str, Any], runs: str) -> Subject:
    devices = counted(scenario["population"]["devices"], "device")
    return Subject(f"{scenario['name']} ({devices})", runs=runs)


def audit_subject(audit: Audit) -> Subject:
    """Returns the subject of an audit: its trace."""
    return trace_subject(audit.trace)


def tasks_subject(audit: TasksAudit) -> Subject:
    """Returns the subject of an audit of several tasks."""
    traces: list[Any] = [each.trace for each in audit.audits.values()]
    devices = max(each.scenario["population"]["devices"] for each in traces)
    return Subject(f"{audit.path.name} ({counted(devices, 'device')})", runs="one run")


def calibration_subject(calibration: TraceCalibration) -> Subject:
    """Returns the subject of a calibration: its trace."""
    return Subject(f"trace {calibration.path.name}", runs="one run")


def statement_subject(statement: Statement) -> Subject:
    """Returns the subject of a privacy statement: the run that it names."""
    return Subject(statement.title, runs="one run")


def ledger_subject(ledger: Ledger) -> Subject:
    """Returns the subject of a ledger: all traces that it charges, and the unit of its budget."""
    return Subject(f"ledger {ledger.path.name}", unit=ledger.unit)
