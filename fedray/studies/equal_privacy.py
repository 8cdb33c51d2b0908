"""Mechanisms at equal privacy: each is calibrated to one epsilon or rho on a trace, then trained
with several seeds.

    OUT/
      mechanisms/NAME.json     the mechanism
      runs/NAME-SEED/          a trained run

An interrupted comparison continues from the runs that are there.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedray.audit.calibration import calibrate_trace
from fedray.base.errors import InputError
from fedray.base.rounding import significant
from fedray.mechanisms.accounting.calibration import check_one_target
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.identity import Identity
from fedray.runs.calibrated import ensures
from fedray.runs.learning import scenario_of, scenario_to_train, train_many
from fedray.runtime.placement import Placement
from fedray.studies.compare import Comparison, comparison_of
from fedray.studies.design import mechanism_at
from fedray.trace.imported import open_trace
from fedray.trace.partial import new_directory
from fedray.trace.reader import Trace

WITHOUT_NOISE = "none"
"""Name of the training without noise, which is not calibrated."""


def compare_mechanisms(
    trace: Trace | str | Path,
    mechanisms: Sequence[str],
    out: str | Path | None = None,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
    seeds: int = 3,
    placement: Placement | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    trust_code: bool = False,
) -> Comparison:
    """Trains mechanisms on one trace at one epsilon, and compares them by paired seeds.

    The epsilon is the enforced one if the rules of the trace ensure anything, and else the observed
    one. Kinds that are optimised are optimised for the participation of that guarantee.

    Args:
        trace: trace of a simulation, opened or as its directory.
        mechanisms: kinds, or files of mechanisms; "none" adds a training without noise.
        out: directory of the mechanisms and runs; runs that are there are not repeated. Default: a
            new one under runs/.
        epsilon: epsilon of every mechanism at delta. Give this or rho.
        rho: rho (zCDP) of every mechanism.
        delta: delta of epsilon; default: that of the trace.
        seeds: number of trainings of each mechanism, with training.seed from 1 on.
        placement: where the trainings run, each a task in one process.
        on_progress: called with lines about mechanisms and trainings.
        trust_code: whether the code of a custom task that came with the trace may be run.

    Returns:
        The mechanisms, the best first.

    Raises:
        InputError: an argument is out of range, a mechanism cannot be made or calibrated, `out`
            holds other trainings, or code is not trusted.
    """
    check_one_target(epsilon, rho)
    if seeds < 1:
        raise InputError.of("seeds", seeds, "must be at least 1", "3 give an interval")
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    # A log has no data to train on.
    own = scenario_of(opened)
    assert isinstance(opened, Trace)
    if not trust_code:
        own.demand_trust_of_training()
    paths = _named(mechanisms)
    target = {"epsilon": epsilon, "rho": rho, "delta": delta}
    limits = calibrate_trace(opened, **target, mechanism=Identity())
    kind = "enforced" if ensures(limits.enforced.guarantee.participation) else "observed"
    directory = Path(os.path.abspath(out or new_directory(f"{own.name}-mechanisms")))
    keys: dict[str, list[str]] = {}
    for name, path in paths.items():
        on_progress(f"calibrating {name}")
        keys[name] = ["privacy.mechanism=none"]
        if path is not None:
            strategy = mechanism_at(path, getattr(limits, kind).guarantee.participation)
            file = directory / "mechanisms" / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_strategy(strategy, file)
            found = getattr(calibrate_trace(opened, **target, mechanism=strategy), kind)
            if found.noise_multiplier is None:
                raise InputError.of("mechanisms", name, found.guarantee.reason, "leave it out")
            z = significant(found.noise_multiplier)
            keys[name] = [f"privacy.mechanism={file}", f"privacy.noise_multiplier={z}"]
    wanted = {
        (name, seed): (
            scenario_to_train(
                opened,
                own.with_overrides(
                    f"privacy.delta={limits.delta!r}", *more, f"training.seed={seed}"
                ),
            ),
            directory / "runs" / f"{name}-{seed}",
        )
        for name, more in keys.items()
        for seed in range(1, seeds + 1)
    }
    (directory / "runs").mkdir(parents=True, exist_ok=True)
    runs = train_many(opened, wanted, placement, on_progress)
    found = comparison_of([*runs.values()], opened, limits.delta, [*paths])
    ranked = found.ranked
    return replace(
        found, groups=(*ranked, *(group for group in found.groups if group not in ranked))
    )


def _named(mechanisms: Sequence[str]) -> dict[str, Path | None]:
    """Returns the mechanisms by their names, those of files without folder and suffix; None for a
    training without noise."""
    named = {
        Path(each).stem if Path(each).suffix else each: None
        if each == WITHOUT_NOISE
        else Path(each)
        for each in mechanisms
    }
    if not mechanisms or len(named) < len(mechanisms):
        rule = "must be one or more mechanisms of different names"
        raise InputError.of("mechanisms", ",".join(mechanisms), rule, "name each once")
    return named
