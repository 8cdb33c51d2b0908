"""A scenario whose study trains in seconds."""

from fedray.scenario import Scenario

SMALL = (
    "population.devices=1500",
    "participation.timer_hours=8",
    "rounds.count=12",
    "rounds.report_goal=60",
    "training.cohort_sample=6",
    "training.evaluate_every=1",
    "training.evaluation_devices=16",
    "privacy.noise_multiplier=2.0",
)


def small() -> Scenario:
    """A thousandth of the quickstart, which has a BLT of its own."""
    return Scenario.from_toml("scenarios/quickstart.toml", SMALL)
