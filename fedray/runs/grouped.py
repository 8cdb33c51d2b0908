"""Evaluation of a trained model by group."""

from pathlib import Path

from fedray.base.errors import InputError
from fedray.trace.groups import By, GroupFunction, Groups, groups_of
from fedray.trace.learned_from import open_trained, opened_training
from fedray.trace.model_files import Which
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import GroupSums, Metric


def evaluate(
    run: TrainedRun | Trace | str | Path,
    by: By | GroupFunction,
    which: Which = "last",
    *,
    trust_code: bool = False,
) -> Groups:
    """Evaluates a trained model by group, with an interval for each, and on the worst tenth of the
    devices.

    Args:
        run: trained run, or the trace of a run that trained, opened or by its directory. Its trace
            and its data must be at hand.
        by: "class", the class number of an example; "zone", the time zone of a device of the
            population; or a function of a device's id and an example, its fields by name, that
            returns the name of the example's group, or None to leave it out.
        which: model after the last round, or "best" for that after the best evaluation.
        trust_code: whether code that came with the run may be run.

    Raises:
        InputError: the data has no such groups or is not at hand, the function fails, no best model
            was kept, or the code is not trusted.
        TraceError: `run` is not a trained run.
    """
    # They load torch, which only this needs.
    from fedray.clients.trainer import LocalTrainer
    from fedray.runtime.devices import torch_restored

    found = run.trained if isinstance(run, Trace) else run
    if found is None:
        raise InputError.of("run", str(run), "trained no model", "give a run with a training")
    found = found if isinstance(found, TrainedRun) else open_trained(found)
    trained, _, scenario = opened_training(found)
    if not trust_code:
        scenario.demand_trust_of_training()
    with torch_restored():
        trainer = LocalTrainer(scenario.for_trainers())
        sums = trainer.group_sums(trained.parameters(which), by)
    rounds = trained.document["rounds"] if which == "last" else trained.best_rounds
    assert rounds is not None, "a run without a best model is refused"
    return grouped(scenario.name, by, which, rounds, sums, trained.task_metrics)


def grouped(
    name: str,
    by: By | GroupFunction,
    which: Which,
    rounds: int,
    sums: GroupSums,
    metrics: tuple[Metric, ...],
) -> Groups:
    """Returns the metrics of a model by group.

    Args:
        name: name of the scenario.
        by: kind of the groups, or a function.
        which: model that was evaluated.
        rounds: number of rounds that it was trained on.
        sums: sums by group and device.
        metrics: metrics of the task.
    """
    groups, worst = groups_of(sums, metrics)
    return Groups(
        run=name,
        by=_name_of(by),
        model=which,
        rounds=rounds,
        evaluated_on="devices of the population" if by == "zone" else "held-out devices",
        data=sums.data,
        metrics=metrics,
        groups=groups,
        worst_tenth=worst,
    )


def _name_of(by: By | GroupFunction) -> str:
    if isinstance(by, str):
        return by
    name = getattr(by, "__name__", type(by).__name__)
    return "group" if name == "<lambda>" else name.strip("_").replace("_", " ")
