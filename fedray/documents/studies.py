"""The keys of studies: plans, sweeps, canaries, fits."""

from dataclasses import replace

from fedray.documents.keys import JsonKey, Keys, key_of, keys_of, meaning_of, text
from fedray.scenario.rounds import Rounds
from fedray.studies.canary import CanaryResult
from fedray.studies.fit import Fit, FittedRun
from fedray.studies.habits.fit import Estimate, HabitFit, Held
from fedray.studies.habits.observed import Layout, ObservedLog
from fedray.studies.noise_tests import CanaryTest
from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.sweep.cells import Row
from fedray.studies.sweep.run import Crossing
from fedray.studies.sweep.sweep import Sweep

VARIED = "cell.KEY"
"""A key that stands for one per KEY that a sweep varies."""


def canary_keys() -> Keys:
    """Of `fedray canary`."""
    added = {
        "confidence": JsonKey("number", "Confidence of the interval of mu, from 0 to 1."),
        **keys_of(CanaryResult, "covers problems"),
    }
    tests = JsonKey("list of objects", "", keys_of(CanaryTest))
    counts = JsonKey("object or null", "")
    keys = {**keys_of(CanaryResult, tests=tests, counts=counts), **added}
    # The counts of short updates are such a document once more.
    keys["counts"] = replace(keys["counts"], within=keys)
    return keys


def plan_keys() -> Keys:
    """Of `fedray plan`."""
    candidate = {
        **keys_of(Candidate),
        "updates": JsonKey("integer", "Accepted updates of a run, of all devices together."),
        "meets_target": JsonKey(
            "boolean", "Whether epsilon is known and no more than was asked for."
        ),
    }
    return keys_of(
        Plan,
        "population rounds min_minutes_between_rounds seeds scale target best candidates timers "
        "warnings",
        population=JsonKey("integer", "Devices of the population."),
        rounds=JsonKey("integer", "Rounds of a run."),
        min_minutes_between_rounds=key_of(Rounds, "min_minutes_between"),
        target=JsonKey("object", "", keys_of(PlanTarget)),
        best=JsonKey("object or null", "", candidate),
        candidates=JsonKey("list of objects", "", candidate),
        timers=JsonKey(
            "list of objects",
            "What each timer needs.",
            {
                "timer_hours": JsonKey("number", meaning_of(Candidate, "timer_hours")),
                "least": JsonKey(
                    "object or null",
                    "The candidate of the least report goal that meets the target: at full size "
                    "where one was simulated; null if none meets it.",
                    candidate,
                ),
            },
        ),
    )


def sweep_keys() -> Keys:
    """Of `fedray stress` where a sweep is named."""
    return {
        "sweep": JsonKey("object", "What was asked for: the keys of the sweep file."),
        "note": text("Why mechanisms are not compared by their noise multipliers."),
        "rows": JsonKey(
            "list of objects",
            "A row per cell and mechanism.",
            {
                VARIED: JsonKey("any", "Of each KEY that is varied its value in the cell."),
                **keys_of(Row),
            },
        ),
        "crossings": JsonKey(
            "list of objects",
            "Where the better of two mechanisms changes along the horizontal axis.",
            keys_of(Crossing),
        ),
    }


def shipped_sweep_keys() -> Keys:
    """Of `fedray stress` where no sweep is named."""
    return {
        "sweeps": JsonKey(
            "list of objects",
            "The sweeps that ship with fedray.",
            {
                "name": text("What `fedray stress` takes."),
                "description": text(meaning_of(Sweep, "description")),
            },
        )
    }


def fit_keys() -> Keys:
    """Of `fedray fit` where a min-sep was observed."""
    run = keys_of(
        FittedRun,
        min_sep=JsonKey(
            "", "The gap; null where no device took part twice, and where the run starved."
        ),
    )
    return {
        **keys_of(
            Fit,
            "key target best runs relative_error",
            best=JsonKey("object", "", run),
            runs=JsonKey("list of objects", "", run),
        ),
        "scale": JsonKey("number", "Size of the runs, as a share of population and report goal."),
    }


def habit_fit_keys() -> Keys:
    """Of `fedray fit` of a log."""
    statistic = {
        "name": text("What it is."),
        "measured": JsonKey("number", "In the log."),
        "simulated": JsonKey("number", "Of the simulated devices at the estimates."),
        "standard_error": JsonKey("number", "Of the difference of both."),
    }
    return {
        **keys_of(Layout, "kind"),
        **keys_of(HabitFit, "devices records"),
        **keys_of(Layout, "days"),
        **keys_of(
            HabitFit,
            "simulated_devices estimates held tables j_statistic degrees_of_freedom p_value",
            estimates=JsonKey("list of objects", "", keys_of(Estimate)),
            held=JsonKey("list of objects", "", keys_of(Held, value=JsonKey("any", ""))),
            tables=JsonKey(
                "object",
                "The tables of a scenario that the fit gives: `availability`, and with "
                "`--utc-offset unknown` `population.time_zones`.",
            ),
        ),
        "statistics": JsonKey(
            "list of objects", "What is compared of the log and of simulated devices.", statistic
        ),
        "times": text(meaning_of(ObservedLog, "form")),
    }
