"""Keys of a study of scenarios/learning/ whose models train in seconds."""

SMALL_STUDY = (
    "population.devices=1500",
    "participation.timer_hours=8",
    "rounds.count=12",
    "rounds.report_goal=60",
    "training.cohort_sample=6",
    "training.evaluate_every=1",
    "training.evaluation_devices=16",
    "privacy.noise_multiplier=2.0",
)
