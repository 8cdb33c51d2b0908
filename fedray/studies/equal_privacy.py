"""Mechanisms at equal privacy: each is calibrated to one epsilon or rho on a trace, then trained
with several seeds. OUT has mechanisms/NAME.json and the trained runs, runs/NAME-SEED/; an
interrupted comparison continues from the runs that are there.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedray.audit.calibration import calibrate_trace
from fedray.base.errors import InputError
from fedray.base.part_done import Announcement
from fedray.base.rounding import counted
from fedray.base.storage import local_path
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.identity import Identity
from fedray.mechanisms.loss import Objective, Purpose, check_objective
from fedray.mechanisms.workload import PREFIX
from fedray.report.progress import duration
from fedray.runs.calibrated import calibrated, ensures
from fedray.runs.design import mechanism_over, purpose_of
from fedray.runs.learning import scenario_of, scenario_to_train, size_and_seconds, train_many
from fedray.runs.noise_ahead import beside_deployment, noise_ahead
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.compare import Comparison, comparison_of
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.partial import new_directory, partial_directory
from fedray.trace.reader import Trace


def compare_mechanisms(
    trace: Trace | ImportedTrace | str | Path,
    mechanisms: Sequence[str],
    out: str | Path | None = None,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
    seeds: int = 3,
    loss: Objective = "rms",
    scenario: Scenario | None = None,
    placement: Placement | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    trust_code: bool = False,
) -> Comparison:
    """Trains mechanisms on one trace at one epsilon, and compares them by paired seeds.

    The epsilon is the enforced one if the rules of the trace ensure anything, and else the observed
    one. Kinds are optimised for the participation of that guarantee.

    Args:
        trace: trace of a simulation, opened or as its directory.
        mechanisms: kinds or files of mechanisms; "none" trains without noise.
        out: directory of mechanisms and runs; default: a new one under runs/.
        epsilon: epsilon of every mechanism at delta. Give this or rho.
        rho: rho (zCDP) of every mechanism.
        delta: delta of epsilon; default: that of the trace.
        seeds: number of trainings of each mechanism, with training.seed from 1 on.
        loss: "rms" or "max", for which kinds are made.
        scenario: source of data and training, as of `train`; default: that of the trace.
        placement: where the trainings run, each a task in one process.
        on_progress: called with lines about calibrations and trainings.
        trust_code: whether the code of a custom task that came with the trace may be run.

    Returns:
        The mechanisms, the best first.

    Raises:
        InputError: an argument is out of range, a mechanism cannot be made or calibrated, `out`
            holds other trainings, or code is not trusted.
    """
    check_objective(loss)
    if seeds < 1:
        raise InputError.of("seeds", seeds, "must be at least 1", "3 give an interval")
    named = {Path(each).stem if Path(each).suffix else each: Path(each) for each in mechanisms}
    if not named or len(named) < len(mechanisms):
        rule = "must be one or more mechanisms of different names"
        raise InputError.of("mechanisms", ",".join(mechanisms), rule, "name each once")
    opened = open_trace(trace) if isinstance(trace, str | Path) else trace
    own = scenario or scenario_of(opened)
    assert isinstance(opened, Trace), "a log has no scenario"
    if not trust_code:
        own.demand_trust_of_training()
    limits = calibrate_trace(
        opened, epsilon=epsilon, rho=rho, delta=delta, mechanism=Identity(), scenario=own
    )
    basis = "enforced" if ensures(limits.enforced.guarantee.participation) else "observed"
    target = f"target_epsilon={epsilon!r}" if rho is None else f"target_rho={rho!r}"
    participation = getattr(limits, basis).guarantee.participation
    # All are made before anything is written, so that a wrong name leaves nothing behind.
    strategies = {
        name: mechanism_over(path, opened.committed_rounds, participation, loss)
        for name, path in named.items()
        if name != "none"
    }
    purposes = {name: purpose_of(named[name], loss) for name in strategies}
    directory = Path(os.path.abspath(local_path(out or new_directory(f"{own.name}-mechanisms"))))
    (directory / "mechanisms").mkdir(parents=True, exist_ok=True)
    (directory / "runs").mkdir(exist_ok=True)
    if out is None:  # an empty directory kept the name
        partial_directory(directory).rmdir()
    wanted, cells = {}, {}
    for name in named:
        on_progress(f"calibrating {name}")
        keys = ["privacy.mechanism=none"]
        if name != "none":
            file = directory / "mechanisms" / f"{name}.json"
            write_strategy(strategies[name], file, purposes[name])
            keys = [f"privacy.mechanism={file}", f"privacy.{target}"]
        changed = own.with_overrides(f"privacy.delta={limits.delta!r}", *keys)
        cells[name] = calibrated(scenario_to_train(opened, changed), opened, on_progress, basis)
        for seed in range(1, seeds + 1):
            seeded = cells[name].with_overrides(f"training.seed={seed}")
            wanted[name, seed] = seeded, directory / "runs" / f"{name}-{seed}"
    if missing := sum(not path.exists() for _, path in wanted.values()):
        half = max(1, own.training.cohort_sample // 2)
        less = f"Fewer seeds, fewer mechanisms or training.cohort_sample={half} take less."
        again = f"If they are cut off, the same out continues them: {os.path.relpath(directory)}"
        on_progress(Announcement(f"{trainings_ahead(cells, missing)} {less} {again}"))
    runs = train_many(opened, wanted, placement, on_progress)
    labels = [_label(name, purposes.get(name), loss) for name in named]
    found = comparison_of([*runs.values()], opened, limits.delta, labels)
    others = [group for group in found.groups if group not in found.ranked]
    return replace(found, groups=(*found.ranked, *others), calibrated_to=basis)


def _label(name: str, purpose: Purpose | None, loss: Objective) -> str:
    """Returns the name of a mechanism, with its purpose if that is another loss or
    workload than that of the kinds."""
    is_other = purpose is not None and purpose.differs_from(Purpose(loss, str(PREFIX)))
    return f"{name} (made for {purpose})" if is_other else name


def trainings_ahead(scenarios: Mapping[str, Scenario], trainings: int) -> str:
    """Returns the noise in effect of trainings that differ only in mechanism and noise,
    and how long they take, in sentences. Some devices are trained for it.

    Args:
        scenarios: scenario of each setting by its name.
        trainings: number of trainings of all settings together.
    """
    first = next(iter(scenarios.values()))
    parameters, seconds = size_and_seconds(first)
    ratios = sorted((noise_ahead(each, parameters), name) for name, each in scenarios.items())
    # A setting without noise has nothing to say here.
    noisy = [f"{ratio:.2g} ({name})" for ratio, name in ratios if ratio]
    noise = ""
    if noisy:
        ends = " to ".join(dict.fromkeys((noisy[0], noisy[-1])))
        noise = (
            f"The noise acts on the models like independent noise of {ends} times the clip norm on "
            "each mean update."
        )
        noise += f"{beside_deployment(first)} "
    rounds, long = counted(first.rounds.count, "round"), duration(trainings * seconds)
    return f"{noise}{counted(trainings, 'training')} of {rounds} take about {long} of CPU time."
