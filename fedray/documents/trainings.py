"""The keys of runs and trainings, and of comparisons and evaluations of trained runs."""

from functools import cache

from fedray.clients.pretraining import Step
from fedray.documents.audits import audit_keys
from fedray.documents.keys import JsonKey, Keys, finite_or_null, keys_of, meaning_of, text, written
from fedray.runs.pretraining import Pretrained
from fedray.studies.compare import Comparison, Group
from fedray.studies.on_devices import DeviceGroup, OnDevices
from fedray.studies.paired import MeanInterval
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Metric, ShardUse


def run_keys() -> Keys:
    """What `fedray run` adds to those of an audit."""
    training = JsonKey(
        "object or null", "What was trained; null without a training.", trained_keys()
    )
    return {"report": _report(), **_costs(), "training": training}


def run_of_tasks_keys() -> Keys:
    """What `fedray run` adds to those of an audit of several tasks."""
    reports = JsonKey("object", "Path of the page of each task that committed rounds, by its name.")
    training = JsonKey(
        "object by task", "What each task trained; null of one without a training.", trained_keys()
    )
    return {"report": _report(), "reports": reports, **_costs(), "training": training}


@cache
def trained_keys() -> Keys:
    """Of every trained run."""
    encoding = {
        "kind": text("Kind of the scenario's `privacy.encoding`."),
        "bits_per_parameter": JsonKey(
            "number", "What a device sends in a round for each parameter, in bits."
        ),
        "inflation": JsonKey(
            "number", "Largest norm of an encoded update over the clip norm; at least 1."
        ),
    }
    return {
        "path": text("Directory of the trained run."),
        "format": text("Name of the format of training.json."),
        "version": JsonKey("integer", "Version of that format."),
        "metrics_digest": text("Digest of the columns of metrics.parquet."),
        "model_sha256": text("SHA-256 of the model's file, in hexadecimal."),
        "parameters": JsonKey("object", "Shape of each tensor of the model, by its name."),
        "task_metrics": JsonKey("list of objects", "Metrics of the evaluations.", keys_of(Metric)),
        "optimum": JsonKey(
            "object", "The best possible value of a metric, by its name, where the task knows it."
        ),
        "trace_digest": text("Digest of the trace that it was learned from."),
        "rounds": JsonKey("integer", "Rounds that were trained."),
        "seed": JsonKey("integer", "Seed of the training."),
        "scenario_digest": text("Digest of the scenario."),
        "scenario": JsonKey("object", "The tables of the scenario file, with all defaults."),
        "aggregator_device": text("Device on which the model was kept, such as `cpu`."),
        "devices_at_once": JsonKey(
            "integer or null", "Devices whose updates are computed together in one batch."
        ),
        "encoding": JsonKey("object", "How updates were encoded.", encoding),
        "trainers": JsonKey("integer", "Workers that trained devices."),
        "restarts": JsonKey("integer", "How often a lost worker was replaced."),
        "notes": JsonKey(
            "list of text",
            "What happened to checkpoints, and that the training diverged if it did; in sentences.",
        ),
        "written": text("When it was written: UTC, as ISO 8601 has it."),
        "wall_seconds": JsonKey("number", "Wall-clock time of the training in seconds."),
        "seconds_per_round": JsonKey(
            "number or null", f"Seconds. {meaning_of(TrainedRun, 'seconds_per_round')}"
        ),
        "packages": JsonKey("object", "Versions of Python and of packages, by their names."),
        "document_digest": text("Digest of training.json itself."),
        "last_metrics": JsonKey(
            "object",
            "The columns of metrics.parquet in the last round, by their names (see the trace "
            "columns); null where a value is missing or not finite.",
        ),
    }


def train_keys() -> Keys:
    """What `fedray train` adds to those of a trained run."""
    audit = JsonKey(
        "object", "The audit of the trace with this run's mechanism and noise.", audit_keys()
    )
    return {"audit": audit}


@cache
def interval_keys() -> Keys:
    """Of the mean of a metric over seeds."""
    return keys_of(
        MeanInterval,
        "count mean low high",
        **{name: finite_or_null(MeanInterval, name) for name in ("mean", "low", "high")},
    )


def comparison_keys() -> Keys:
    """Of `fedray compare`."""
    run = {
        "path": text("Directory of the trained run."),
        "seed": JsonKey("integer", "Seed of the training."),
        "rounds": JsonKey("integer", "Rounds that were trained."),
        "metrics": JsonKey("object by metric", "Metrics after the last round.", _measured()),
        **keys_of(TrainedRun, "bits_per_parameter bytes_per_upload seconds_per_round"),
    }
    group = keys_of(
        Group,
        "label mechanism noise_multiplier settings epsilon rho seeds means differences runs",
        mechanism=text("Kind of the mechanism."),
        settings=JsonKey("object", ""),
        epsilon=JsonKey("object or null", "Epsilon by guarantee: `observed` and `enforced`. Null "
                        "where the trace is not known."),
        rho=JsonKey("object or null", ""),
        means=JsonKey("object by metric", "Means of the last metrics over its seeds.",
                      interval_keys()),
        differences=JsonKey(
            "object by metric or null",
            "Mean differences to the first group, over seeds of both; null for the first.",
            interval_keys(),
        ),
        runs=JsonKey("list of objects", "Its runs, by their seeds.", run),
    )  # fmt: skip
    compared = keys_of(
        Comparison,
        "trace_digest delta metrics differing_keys groups note costs_note privacy_note "
        "evaluation_note assumptions",
        metrics=JsonKey("list of objects", "", keys_of(Metric, "name unit better")),
        groups=JsonKey("list of objects", "", group),
        note=text("How intervals and differences are computed."),
        costs_note=text("What the costs are, and what they depend on."),
    )
    return {**compared, **written()}


def evaluation_keys() -> Keys:
    """Of `fedray evaluate`."""
    measured = {
        "value": JsonKey("number or null", "Mean of the metric over the devices of the group."),
        "standard_error": JsonKey("number or null", "Its standard error."),
        "quantiles": JsonKey(
            "list of numbers and nulls", "Quantiles of the metric over these devices."
        ),
    }
    group = keys_of(
        DeviceGroup,
        "by label low high devices metrics",
        metrics=JsonKey("object by metric", "What was measured on them.", measured),
    )
    evaluated = keys_of(
        OnDevices,
        "path trace_digest metrics sample most_examples without_data quantiles groups notes",
        path=text("Directory of the trained run."),
        trace_digest=text("Digest of the trace that it was learned from."),
        metrics=JsonKey("list of objects", "", keys_of(Metric, "name unit better")),
        quantiles=JsonKey("list of numbers", "Which quantiles each group has, from 0 to 1."),
        groups=JsonKey("list of objects", "", group),
    )
    return {**evaluated, **written()}


def pretraining_keys() -> Keys:
    """Of `fedray pretrain`."""
    step = {
        "step": JsonKey("integer", meaning_of(Step, "number")),
        "train_loss": finite_or_null(Step, "train_loss"),
        "metrics": JsonKey("object by metric", meaning_of(Step, "evaluation"), _measured()),
    }
    return {
        "file": text(meaning_of(Pretrained, "path")),
        **keys_of(Pretrained, "sha256 examples"),
        "steps": JsonKey("list of objects", meaning_of(Pretrained, "steps"), step),
    }


@cache
def _measured() -> Keys:
    return {
        "value": JsonKey("number or null", "The metric on the held-out data."),
        "standard_error": JsonKey("number or null", "Its standard error."),
    }


def _report() -> JsonKey:
    return JsonKey("text or null", "Path of the page; null where it could not be written.")


def _costs() -> Keys:
    return {
        "wall_seconds": JsonKey("number", "Wall-clock time of the simulation in seconds."),
        "shard_use": JsonKey(
            "list of objects", "What each worker of the population used.", keys_of(ShardUse)
        ),
        "driver_peak_mebibytes": JsonKey(
            "number", "Peak memory of the process that ran the rounds, in MiB."
        ),
        "restarts": JsonKey("integer", "How often a lost worker was replaced."),
    }
