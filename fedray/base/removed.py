"""Names of earlier versions, with the replacement of each.

A command, option, key or value that was removed is refused with its replacement, not guessed at.
"""

REMOVED = {
    "fedray status --watch": "repeat `fedray status`, and use `--tensorboard` for curves",
    "fedray population --format": "write Parquet, which docs/populations.md converts",
    "fedray cache": "delete the folder ~/.cache/fedray, or what is old in it, while nothing runs",
    "fedray data": "give the folder of plays to `fedray reproduce shakespeare --data`",
    "fedray evaluate": "give a task of its own analytics.values.kind = 'evaluation'",
    "fedray.evaluate_on_devices": "give a task of its own analytics.values.kind = 'evaluation'",
    "fedray.OnDevices": "give a task of its own analytics.values.kind = 'evaluation'",
    "fedray pretrain": "train on the public data with privacy.mechanism.kind='none', and set "
    "training.initial.file to its model.safetensors",
    "fedray.pretrain": "train with privacy.mechanism.kind='none', and set training.initial.file",
    "fedray.Pretrained": "train with privacy.mechanism.kind='none', and set training.initial.file",
    "fedray.Pretraining": "train with privacy.mechanism.kind='none', and set training.initial.file",
    "fedray reproduce blt --slow": "make a matrix beyond the paper's table by `fedray optimize "
    "banded --bands 128` or `fedray optimize dense`, and judge it by `fedray mechanism`",
    "fedray reproduce coverage": "run scenarios/coverage.toml once for each "
    "rounds.uploads.window_hours",
    "fedray reproduce gboard-predict --seeds": "leave it out: its runs of one seed are compared "
    "with a scatter of 10 % between tasks",
    "fedray reproduce gboard-sensitivity": "run `fedray stress nwp_en_gb`, with --what-if for each "
    "key to change",
    "fedray reproduce learning": "compare mechanisms on any trace by `fedray compare-mechanisms`",
    "fedray reproduce signal-to-noise": "train a grid of `fedray sweep` that varies "
    "training.cohort_sample",
    "fedray reproduce tree-patterns": "run tests/reproduction/tree_patterns.py of the sources",
    "fedray init --all": "`fedray schema TABLE` describes every key of a table",
    "fedray init --json": "leave it out: it prints a line for each file",
    "fedray schema --kind": "write it after the table, as in `fedray schema data.parquet`",
    "fedray mechanism --parameters": "time a training, or fedray.CorrelatedNoise, with the "
    "mechanism",
    "fedray mechanism --partitions": "give fedray.PoissonSampling with partitions to "
    "fedray.mechanism_figures",
    "fedray mechanism --place": "leave it out: random rounds are drawn in this process",
    "fedray import --format": "leave it out: the suffix or the first bytes of a log show its form",
    "fedray fit-log --format": "leave it out: the suffix or the first bytes of a log show its form",
    "fedray import --memory": "set memory_mebibytes of fedray.import_log in Python",
    "fedray optimize --objective": "set objective of fedray.MechanismRequest in Python",
    "fedray optimize --targets": "set targets of fedray.MechanismRequest in Python",
    "fedray plan --buffers": "set buffers of fedray.PlanTarget in Python",
    "fedray plan --max-days": "give `--set rounds.max_days=DAYS`",
    "fedray audit-model --references": "set references of fedray.audit_model in Python",
    "fedray canary --coordinates": "set coordinates of fedray.run_canary in Python",
    "fedray answer --confidence": "set confidence of fedray.answer in Python",
    "fedray compare --delta": "set delta of fedray.compare_runs in Python",
    "fedray stress --estimated-participations": "call fedray.stress in Python",
    "fedray stress --actual-participations": "call fedray.stress in Python",
    "fedray fit-log --days": "give a column of times; rounds identified only the propensity",
    "fedray reproduce shakespeare --tuning": "give --data only the roles to tune on",
    "fedray fit-min-sep --tolerance": "the fit has an interval instead",
    "fedray canary --verify": "a trace is checked as by `fedray audit`",
    "fedray canary --no-verify": "open the trace in Python, and call fedray.run_canary",
    "fedray report --json": "it prints the path of each file, one a line",
    "fedray report --verify": "a trace is checked as by `fedray audit`",
    "fedray report --no-verify": "write the page by `fedray audit --no-verify --page`",
    "fedray audit-model --examples": "set examples of fedray.audit_model in Python",
    "fedray.FittedRun": "the runs of a fedray.Fit are its `runs`",
    "fedray.utility": "call fedray.mechanism_figures, whose `loss` has errors and losses",
    "fedray.Utility": "call fedray.mechanism_figures, whose `loss` has errors and losses",
    "fedray.Aggregates": "see fedray.server.learning.aggregator.ModelAggregator",
    "fedray.Trains": "see fedray.clients.canaries.CanaryTrainer",
    "fedray.resume": "call fedray.resume_run",
    "fedray.resume_tasks": "call fedray.resume_run",
    "fedray.run_tasks": "call fedray.run_scenario",
    "fedray.simulate_tasks": "call fedray.simulate",
    "availability.slow_days": "leave out intervals of slow days in a function of your own, by "
    "availability.model = 'custom'",
    "population.correlation": "give population.classes, which differ in speed, rates, examples and "
    "habits together, or data.tie, which ties what a device holds to its speed, hour or zone",
    "participation.clock_changes_per_day": "use clock_skew_hours or timer_violators there",
    "participation.clock_change_hours": "use clock_skew_hours or timer_violators there",
    "clock_changes_digest": "use the fedray release that wrote the trace",
    "kind = 'gaussian-sum'": "describe it by kind = 'gaussian', with standard_deviation / bound as "
    "noise_multiplier",
    "training.devices_at_once = 'measured'": "give the number of devices that is fastest for you",
    "privacy.mechanism.kind = 'restarted'": "use kind 'tree' with its key restarts, or a matrix of "
    "your own with the blocks of the restarts",
    "data.kind = 'leaf'": "convert the files to Parquet as docs/data.md shows",
    "data.kind = 'pfl_hdf5'": "convert the file to Parquet as docs/data.md shows",
    "analytics.question.most_l1": "bound a device by high and most_keys",
    "analytics.question.most_l2": "bound a device by high and most_keys",
    "analytics.trust.kind = 'local'": "take the trust model central, or distributed with secure "
    "aggregation",
    "analytics.trust.kind = 'shuffled'": "take the trust model central, or distributed with secure "
    "aggregation",
    "fedray.Odometer": "log the participations of your loop for `fedray import`, and audit them",
    "fedray.OdometerReading": "log the participations of your loop, and audit them",
    "fedray reproduce dp-lstm": "run tests/simulation/test_dp_fedavg.py of the sources, whose "
    "audits of simulated runs have the printed epsilons",
    "training.task.kind = 'transformer_lm'": "bring a transformer as a module of your own, as "
    "docs/train.md shows",
    "fedray audit --tuning": "charge every released training to a ledger, by `fedray budget`",
    "fedray audit --join-ids": "import the log again by `fedray import --join-ids`",
    "fedray audit --no-join-ids": "import the log again by `fedray import --no-join-ids`",
    "fedray.RandomRuns": "train every cell with `seeds` of fedray.Sweep",
    "plane": "leave it out; a figure has a line for each value of the other keys",
    "runs": "leave it out; a sweep trains every cell with `seeds`",
    "fedray.Tuning": "charge every released training to a ledger, by `fedray budget`",
    "fedray.read_tuning": "charge every released training to a ledger, by `fedray budget`",
    "fedray reproduce amplified": "run tests/mechanisms/test_amplified.py of the sources, or "
    "`fedray optimize best` at an epsilon",
    **{
        f"fedray {command} --{flag}": "set XDG_CACHE_HOME to a new folder"
        for command in ("fit-min-sep", "optimize", "plan", "stress", "sweep")
        for flag in ("cache", "no-cache")
    },
}
"""Replacement of each removed name: a command, a command with an option, a name of the package, the
full path of a key in a file, or `key = 'value'`."""


def removed(name: str) -> str | None:
    """Returns the refusal of a removed name in one sentence; None for any other name."""
    instead = REMOVED.get(name)
    return instead and f"{name} was removed; {instead}"
