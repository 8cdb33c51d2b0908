"""Keys of a run of seconds of fedray/scenarios/trust.py."""

SMALL_TRUST = (
    "population.devices=2000",
    "rounds.count=12",
    "rounds.report_goal=20",
    "training.cohort_sample=10",
    "training.evaluation_devices=16",
)
