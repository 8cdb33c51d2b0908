"""The documents that `--json` prints and that runs leave as JSON files, key by key.

A document is made of values. What a key means stands where its value is defined: below a field, in
the docstring of its class, or in that of a property (`fedray.descriptions.attributes_of`). Here are
the keys that each document takes from these classes, and the words for those that no class has.
Documents that are not listed here have no reference yet.
"""

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from fedray.audit.audit import Audit, MechanismAudit
from fedray.audit.distribution import DevicePrivacy, Frontier, FrontierEntry, Quantile
from fedray.audit.filtered import Exclusions
from fedray.audit.findings import Evidence, Finding, Summary
from fedray.audit.guarantees import Guarantee
from fedray.audit.ledger import LedgerEntry
from fedray.audit.rules import Violations
from fedray.audit.statement import Line, Statement
from fedray.descriptions import attributes_of, descriptions_of
from fedray.encoding.tables import DiscreteGaussian
from fedray.mechanisms.comparison import Utility
from fedray.mechanisms.figures import Figures
from fedray.mechanisms.loss import Loss
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Sensitivity
from fedray.messages import Metric, ShardUse
from fedray.scenario.rounds import Rounds
from fedray.studies.canary import CanaryResult
from fedray.studies.compare import Comparison, Group
from fedray.studies.paired import MeanInterval
from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.sweep.cells import Row
from fedray.studies.sweep.run import Crossing
from fedray.trace.imported import LeftOut
from fedray.trace.trained import TrainedRun

_SYMBOLS = {"rho", "mu", "delta"}
"""First words that stay as they are, beside single letters."""
_WORDS = {int: "integer", float: "number", bool: "boolean", str: "text", type(None): "null"}


@dataclass(frozen=True, slots=True)
class JsonKey:
    """A key of a document, or of an object within it."""

    type: str
    """Such as "number or null", "list of integers", or "object by metric" where keys are names."""
    meaning: str
    """A sentence or a phrase, with the unit where there is one."""
    within: Mapping[str, "JsonKey"] | None = None
    """The keys of the object, of each object of the list, or of each object by name; None where the
    value has none, or where its keys are those of something else."""


_AS_DEFINED = JsonKey("", "")
"""Of an attribute: with its own type and meaning."""
Keys = Mapping[str, JsonKey]


@dataclass(frozen=True, slots=True)
class Document:
    """What a command prints or a file has, or what several of them have in common."""

    where: str
    """The commands and files, as a sentence."""
    keys: Keys
    """Its keys in order, without those of `base`."""
    base: str = ""
    """The document whose keys it has too; empty for none."""

    @property
    def all_keys(self) -> Keys:
        """Its keys and those of `base`."""
        return {**documents()[self.base].all_keys, **self.keys} if self.base else self.keys


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A key of a document with its whole path, as references show it."""

    path: str
    """Such as "mechanisms[].guarantees[].rho": [] stands for each of a list, and a word in capitals
    for a name."""
    type: str
    """As `JsonKey.type`."""
    meaning: str
    """As `JsonKey.meaning`, and where the keys of the object are listed if not below."""


VARIED = "cell.KEY"
"""A key that stands for one per KEY that a sweep varies."""
AUDIT, TRAINED = "An audit", "A trained run"


@cache
def documents() -> Mapping[str, Document]:
    """Every document that has a reference, by its name."""
    return {
        AUDIT: Document("What is said of every audited trace.", _audit()),
        "fedray audit": Document(
            "`fedray audit --json`, of a run of one task or of an imported log.",
            _audit_command(),
            AUDIT,
        ),
        "fedray statement": Document(
            "`fedray statement --json`, and statement.json.",
            _keys(Statement, lines=JsonKey("list of objects", "", _keys(Line))),
        ),
        "fedray report": Document(
            "`fedray report --json`, of a run of one task or of an imported log.", _report()
        ),
        "fedray canary": Document("`fedray canary --json`.", _canary()),
        "fedray run": Document("`fedray run --json`, of one task.", _run(), AUDIT),
        TRAINED: Document(
            "What is said of every training. The file training.json has these keys without `path` "
            "and `last_metrics`.",
            _trained(),
        ),
        "fedray train": Document("`fedray train --json`.", _train(), TRAINED),
        "fedray compare": Document("`fedray compare --json`.", _compare()),
        "fedray import": Document(
            "`fedray import --json`. The file run.json of an imported log has these keys and "
            "`parts`.",
            _import(),
        ),
        "fedray plan": Document(
            "`fedray plan --json`. The file plan.json has these keys and `command`, how it was "
            "made.",
            _plan(),
        ),
        "fedray stress": Document(
            "`fedray stress --json` of a sweep, and its results.json.", _stress()
        ),
        "fedray mechanism": Document(
            "`fedray mechanism --json` and `fedray calibrate --json`.", _figures()
        ),
        "fedray optimize": Document("`fedray optimize --json`.", _optimize(), "fedray mechanism"),
    }


def rows_of(name: str) -> list[DocumentRow]:
    """The rows of a document, in order, without those of its `base`.

    Args:
        name: of the document.
    """
    shown = {id(each.keys): f'"{other}"' for other, each in documents().items()}
    return list(_rows(documents()[name].keys, "", shown))


def _rows(keys: Keys, above: str, shown: dict[int, str]) -> Iterator[DocumentRow]:
    """Rows of keys below a path; objects that were shown before are not shown again."""
    for name, key in keys.items():
        path = f"{above}{name}"
        where = shown.get(id(key.within))
        if key.within is None:
            yield DocumentRow(path, key.type, key.meaning)
        elif where is not None:
            yield DocumentRow(path, key.type, f"{key.meaning} The keys are those of {where}.")
        else:
            yield DocumentRow(path, key.type, key.meaning)
            step = _step(key.type)
            shown[id(key.within)] = f"`{path}{step}`"
            yield from _rows(key.within, f"{path}{step}.", shown)


def _step(kind: str) -> str:
    """What stands between a key and those within it."""
    if kind.startswith("list"):
        return "[]"
    _, by, name = kind.removesuffix(" or null").partition("object by ")
    return f".{name.upper()}" if by else ""


def _keys(owner: type, names: str = "", **given: JsonKey) -> Keys:
    """Keys that are attributes of a class.

    Args:
        owner: the class.
        names: the keys, in order; empty for all fields of a dataclass.
        given: keys that are none of its attributes, or whose value is another one in JSON. An empty
            type or meaning is that of the attribute.
    """
    listed = names.split() or [field.name for field in fields(owner)]
    return {name: _key(owner, name, given.get(name, _AS_DEFINED)) for name in listed}


def _key(owner: type, name: str, given: JsonKey = _AS_DEFINED) -> JsonKey:
    meaning = given.meaning or _meaning(owner, name)
    return JsonKey(given.type or _type_of(_annotation(owner, name)), meaning, given.within)


def _meaning(owner: type, name: str) -> str:
    """What an attribute means, as a sentence with JSON's words for values."""
    told = descriptions_of if issubclass(owner, BaseModel) else attributes_of
    meaning = " ".join(told(owner)[name].split())
    for ours, json in (("None", "null"), ("True", "true"), ("False", "false")):
        meaning = re.sub(rf"(^|\. ){ours}\b", rf"\1{json.capitalize()}", meaning)
        meaning = re.sub(rf"\b{ours}\b", json, meaning)
    first = re.match(r"\w*", meaning)
    assert first is not None
    word = first[0]
    is_word = len(word) > 1 and word.isalpha() and word.islower() and word not in _SYMBOLS
    return meaning[0].upper() + meaning[1:] if is_word else meaning


def _annotation(owner: type, name: str) -> Any:
    value = vars(owner).get(name)
    getter = getattr(value, "fget", None) or getattr(value, "func", None)
    return get_type_hints(getter)["return"] if getter else get_type_hints(owner)[name]


def _type_of(annotation: Any) -> str:
    """An annotation in the words of JSON."""
    if annotation in _WORDS:
        return _WORDS[annotation]
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin in (types.UnionType, Union):
        return " or ".join(_type_of(each) for each in arguments)
    if origin in (tuple, list):
        several = (f"{_type_of(each)}s" for each in get_args(arguments[0]) or arguments[:1])
        return f"list of {' and '.join(several)}".replace("texts", "text")
    is_text = origin is Literal or issubclass(annotation, StrEnum)
    assert is_text, f"{annotation} has no words in JSON"
    return "text"


def _text(meaning: str) -> JsonKey:
    return JsonKey("text", meaning)


def _written() -> dict[str, JsonKey]:
    """What commands add of files that were asked for."""
    return {
        "page": _text("Path of the page; only with `--page`."),
        "figures": _text("Directory of the figures; only with `--figures`."),
    }


@cache
def _guarantee() -> Keys:
    return _keys(
        Guarantee,
        "name scope is_known reason may_rest_on rounds min_sep max_participations sensitivity "
        "is_exact theorem mu rho epsilon delta assumptions",
        is_known=JsonKey("boolean", "Whether the sensitivity is known."),
        rounds=JsonKey("integer or null", "Rounds that released something."),
        max_participations=JsonKey("integer or null", "k, most participations of a device."),
        sensitivity=JsonKey("number or null", ""),
        is_exact=JsonKey(
            "boolean or null", "Whether the sensitivity is exact; false: it is an upper bound."
        ),
        theorem=JsonKey("text or null", "What proves the sensitivity."),
    )


def _mechanism_audit() -> Keys:
    return _keys(
        MechanismAudit,
        "name is_own parameters noise_multiplier binding_device binding_rounds observed_limits "
        "sampled filtered guarantees",
        parameters=JsonKey("object", "The mechanism's own parameters, as in its file."),
        binding_rounds=JsonKey("list of integers", "The rounds of that device."),
        observed_limits=JsonKey("object", "", _guarantee()),
        sampled=JsonKey("object or null", "", _guarantee()),
        filtered=JsonKey("object or null", "", _guarantee()),
        guarantees=JsonKey("list of objects", "", _guarantee()),
    )


@cache
def _audit() -> Keys:
    encoding = {
        **_keys(
            DiscreteGaussian,
            "kind scale modulus_bits parameters",
            kind=_text("Kind of the encoding; it has those of the next keys that its table has."),
        ),
        "noise_is_relative_to": _text("What the noise multiplier is measured by."),
        "least_noise": JsonKey(
            "object or null",
            "The round with the least noise; null where the server adds the noise.",
            {
                "round": JsonKey("integer", "Number of the round, from 0."),
                "devices": JsonKey("integer", "Devices whose noise is in its sum."),
                "noise_multiplier": JsonKey("number", "Noise multiplier of that round."),
            },
        ),
    }
    release = {
        "query": _text("What was released."),
        "noise_multiplier": JsonKey("number", "Its noise multiplier."),
        "rho": JsonKey("number", "zCDP of it."),
    }
    return _keys(
        Audit,
        "trace digest ended rounds devices participations min_sep max_participations "
        "participations_per_device violations exclusions left_out filtered_rows incompleteness "
        "mechanisms guarantees releases utility utility_basis utility_rho utility_note verdicts "
        "claim_holds claim_sentence findings encoding assumptions",
        trace=_text("Directory of the trace."),
        participations_per_device=JsonKey(
            "object", "How many devices took part so many times; the keys are the numbers of times."
        ),
        violations=JsonKey("object or null", "", _keys(Violations)),
        exclusions=JsonKey("object or null", "", _exclusions()),
        left_out=JsonKey("list of objects", "", _keys(LeftOut)),
        mechanisms=JsonKey("list of objects", "", _mechanism_audit()),
        guarantees=JsonKey(
            "list of objects",
            "The guarantees of the first mechanism once more; empty without a mechanism.",
            _guarantee(),
        ),
        releases=JsonKey("list of objects", "", release),
        utility=JsonKey("list of objects", "", _keys(Utility)),
        utility_basis=JsonKey(
            "text or null", "Name of the guarantee whose rho all rows of `utility` have."
        ),
        utility_rho=JsonKey("number or null", "That rho (zCDP)."),
        utility_note=_text("Why mechanisms are not compared by their noise multipliers."),
        verdicts=JsonKey(
            "object by kind or null",
            "How a claim fared in `privacy` and in `participation`, as far as it says something of "
            "them; null without a claim.",
            _keys(Summary),
        ),
        findings=JsonKey("list of objects", "", _finding()),
        encoding=JsonKey(
            "object or null",
            "How updates were sent, and what their noise is measured by; null for a log.",
            encoding,
        ),
    )


def _exclusions() -> Keys:
    return _keys(
        Exclusions,
        "devices first_round median_round participations of_others came_back",
        devices=JsonKey("integer", "How many were excluded."),
        first_round=JsonKey("integer or null", "Round from which the first was excluded."),
        median_round=JsonKey("integer or null", "Median of the rounds from which they were."),
    )


def _finding() -> Keys:
    evidence = JsonKey("list of objects", "", _keys(Evidence))
    return {**_keys(Finding, evidence=evidence), **_keys(Finding, "evidence_note")}


def _audit_command() -> Keys:
    entry = _keys(
        FrontierEntry,
        "fewest most devices min_sep spans sensitivity is_exact",
        sensitivity=JsonKey("number", ""),
        is_exact=JsonKey("boolean", _meaning(Sensitivity, "is_exact")),
    )
    in_full = {
        "device_privacy": JsonKey(
            "object or null",
            _meaning(Audit, "device_privacy") + _ONLY_WITH_CLAIM,
            _keys(
                DevicePrivacy,
                "quantiles mean_rho is_exact",
                quantiles=JsonKey("list of objects", "", _keys(Quantile)),
            ),
        ),
        "frontier": JsonKey(
            "object or null",
            _meaning(Audit, "frontier") + _ONLY_WITH_CLAIM,
            _keys(
                Frontier,
                "sensitivity entries",
                entries=JsonKey("list of objects", "", entry),
            ),
        ),
        "ledger": JsonKey(
            "list of objects", _meaning(Audit, "ledger") + _ONLY_WITH_CLAIM, _keys(LedgerEntry)
        ),
    }
    added = {
        "integrity": _text("What protects the figures of the trace against damage, as a sentence."),
        "digest_verified": JsonKey("boolean", "Whether `--verify` recomputed every digest."),
        "events": _text("Path of the events; only with `--events`."),
    }
    return {**in_full, **added, **_written()}


_ONLY_WITH_CLAIM = " Only with `--claim`."


def _run() -> Keys:
    training = JsonKey(
        "object or null",
        "What was trained; null without a training.",
        _trained(),
    )
    return {
        "report": JsonKey("text or null", "Path of the page; null where it could not be written."),
        "wall_seconds": JsonKey("number", "Wall-clock time of the simulation in seconds."),
        "shard_use": JsonKey(
            "list of objects", "What each worker of the population used.", _keys(ShardUse)
        ),
        "driver_peak_mebibytes": JsonKey(
            "number", "Peak memory of the process that ran the rounds, in MiB."
        ),
        "restarts": JsonKey("integer", "How often a lost worker was replaced."),
        "training": training,
    }


def _report() -> Keys:
    return {**_written(), "page": _text("Path of the page.")}


def _canary() -> Keys:
    added = {
        "confidence": JsonKey("number", "Confidence of the interval of mu, from 0 to 1."),
        **_keys(CanaryResult, "covers problems"),
    }
    keys = {**_keys(CanaryResult, counts=JsonKey("object or null", "")), **added}
    # The counts of short updates are such a document once more.
    keys["counts"] = replace(keys["counts"], within=keys)
    return keys


@cache
def _trained() -> Keys:
    encoding = {
        "kind": _text("Kind of the scenario's `privacy.encoding`."),
        "bits_per_parameter": JsonKey(
            "number", "What a device sends in a round for each parameter, in bits."
        ),
        "inflation": JsonKey(
            "number", "Largest norm of an encoded update over the clip norm; at least 1."
        ),
    }
    return {
        "path": _text("Directory of the trained run."),
        "format": _text("Name of the format of training.json."),
        "version": JsonKey("integer", "Version of that format."),
        "metrics_digest": _text("Digest of the columns of metrics.parquet."),
        "model_sha256": _text("SHA-256 of the model's file, in hexadecimal."),
        "parameters": JsonKey("object", "Shape of each tensor of the model, by its name."),
        "task_metrics": JsonKey("list of objects", "Metrics of the evaluations.", _keys(Metric)),
        "optimum": JsonKey(
            "object", "The best possible value of a metric, by its name, where the task knows it."
        ),
        "trace_digest": _text("Digest of the trace that it was learned from."),
        "rounds": JsonKey("integer", "Rounds that were trained."),
        "seed": JsonKey("integer", "Seed of the training."),
        "scenario_digest": _text("Digest of the scenario."),
        "scenario": JsonKey("object", "The tables of the scenario file, with all defaults."),
        "aggregator_device": _text("Device on which the model was kept, such as `cpu`."),
        "devices_at_once": JsonKey(
            "integer or null", "Devices whose updates are computed together in one batch."
        ),
        "encoding": JsonKey("object", "How updates were encoded.", encoding),
        "trainers": JsonKey("integer", "Workers that trained devices."),
        "restarts": JsonKey("integer", "How often a lost worker was replaced."),
        "notes": JsonKey("list of text", "What happened to checkpoints, in sentences."),
        "written": _text("When it was written: UTC, as ISO 8601 has it."),
        "wall_seconds": JsonKey("number", "Wall-clock time of the training in seconds."),
        "seconds_per_round": JsonKey(
            "number or null", f"Seconds. {_meaning(TrainedRun, 'seconds_per_round')}"
        ),
        "packages": JsonKey("object", "Versions of Python and of packages, by their names."),
        "document_digest": _text("Digest of training.json itself."),
        "last_metrics": JsonKey(
            "object",
            "The columns of metrics.parquet in the last round, by their names (see the trace "
            "columns); null where a value is missing or not finite.",
        ),
    }


def _train() -> Keys:
    audit = JsonKey(
        "object", "The audit of the trace with this run's mechanism and noise.", _audit()
    )
    return {"audit": audit}


@cache
def _interval() -> Keys:
    return _keys(
        MeanInterval,
        "count mean low high",
        **{
            name: JsonKey("number or null", _meaning(MeanInterval, name).replace("NaN", "null"))
            for name in ("mean", "low", "high")
        },
    )


def _compare() -> Keys:
    measured = {
        "value": JsonKey("number or null", "The metric on the held-out data."),
        "standard_error": JsonKey("number or null", "Its standard error."),
    }
    run = {
        "path": _text("Directory of the trained run."),
        "seed": JsonKey("integer", "Seed of the training."),
        "rounds": JsonKey("integer", "Rounds that were trained."),
        "metrics": JsonKey("object by metric", "Metrics after the last round.", measured),
        **_keys(TrainedRun, "bits_per_parameter bytes_per_upload seconds_per_round"),
    }
    group = _keys(
        Group,
        "label mechanism noise_multiplier settings epsilon rho seeds means differences runs",
        mechanism=_text("Kind of the mechanism."),
        noise_multiplier=JsonKey("number", "Noise multiplier of its runs."),
        settings=JsonKey("object", ""),
        epsilon=JsonKey("object or null", "Epsilon by guarantee: `observed` and `enforced`. Null "
                        "where the trace is not known."),
        rho=JsonKey("object or null", ""),
        means=JsonKey("object by metric", "Means of the last metrics over its seeds.", _interval()),
        differences=JsonKey(
            "object by metric or null",
            "Mean differences to the first group, over seeds of both; null for the first.",
            _interval(),
        ),
        runs=JsonKey("list of objects", "Its runs, by their seeds.", run),
    )  # fmt: skip
    compared = _keys(
        Comparison,
        "trace_digest delta metrics differing_keys groups note costs_note privacy_note assumptions",
        metrics=JsonKey("list of objects", "", _keys(Metric, "name unit better")),
        groups=JsonKey("list of objects", "", group),
        note=_text("How intervals and differences are computed."),
        costs_note=_text("What the costs are, and what they depend on."),
    )
    return {**compared, **_written()}


def _import() -> Keys:
    times = {
        "column": JsonKey("text or null", "The log's column of times."),
        "form": JsonKey("text or null", "What its values are."),
        "rounds_file_form": JsonKey("text or null", "What the times of the rounds file are."),
        "origin": JsonKey("number", "The moment that is 0 in the trace, in seconds of the log."),
    }
    return {
        "format": _text("Name of the format of run.json."),
        "version": JsonKey("integer", "Version of that format."),
        "digest": _text("Digest of the columns of all parts."),
        "devices_digest": _text("Digest of the names of the devices."),
        "rounds_digest": _text("Digest of the file of the log's rounds."),
        "log": _text("The log that was read."),
        "device_columns": JsonKey("list of text", "Its columns that name a device."),
        "round_column": JsonKey("text or null", "Its column of rounds."),
        "where": JsonKey("list of text", "The conditions of `--where`."),
        "numbering": _text("How rounds of the log became numbers from 0."),
        "rounds_file": JsonKey("text or null", "The file that lists the rounds, if one was given."),
        "rounds": JsonKey("integer", "Rounds that released a model."),
        "empty_rounds": JsonKey("integer", "Of them, those without a participation."),
        "rounds_out_of_order": JsonKey(
            "integer", "Rounds that stand in another order by time than by number."
        ),
        "repeats": _text("What further rows of one device in one round are: `--repeats`."),
        "repeated_rows": JsonKey("integer", "How many such rows there are."),
        "times": JsonKey("object or null", "Where times come from; null without any.", times),
        "rows_read": JsonKey("integer", "Rows of the log."),
        "filtered_rows": JsonKey("integer", "Of them, those that `--where` left out."),
        "rows": JsonKey("integer", "Participations of the trace."),
        "devices": JsonKey("integer", "Devices that took part at least once."),
        "left_out": JsonKey("list of objects", "Rows that are no participation.", _keys(LeftOut)),
        "written": _text("When it was written: UTC, as ISO 8601 has it."),
        "packages": JsonKey("object", "Versions of Python and of packages, by their names."),
        "document_digest": _text("Digest of run.json itself."),
    }


def _plan() -> Keys:
    candidate = {
        **_keys(Candidate),
        "updates": JsonKey("integer", "Accepted updates of a run, of all devices together."),
        "meets_target": JsonKey(
            "boolean", "Whether epsilon is known and no more than was asked for."
        ),
    }
    return _keys(
        Plan,
        "population rounds min_minutes_between_rounds seeds scale target best candidates timers "
        "warnings",
        population=JsonKey("integer", "Devices of the population."),
        rounds=JsonKey("integer", "Rounds of a run."),
        min_minutes_between_rounds=_key(Rounds, "min_minutes_between"),
        target=JsonKey("object", "", _keys(PlanTarget)),
        best=JsonKey("object or null", "", candidate),
        candidates=JsonKey("list of objects", "", candidate),
        timers=JsonKey(
            "list of objects",
            "What each timer needs.",
            {
                "timer_hours": JsonKey("number", _meaning(Candidate, "timer_hours")),
                "least": JsonKey(
                    "object or null",
                    "The candidate of the least report goal that meets the target: at full size "
                    "where one was simulated; null if none meets it.",
                    candidate,
                ),
            },
        ),
    )


def _stress() -> Keys:
    return {
        "sweep": JsonKey("object", "What was asked for: the keys of the sweep file."),
        "note": _text("Why mechanisms are not compared by their noise multipliers."),
        "rows": JsonKey(
            "list of objects",
            "A row per cell and mechanism.",
            {
                VARIED: JsonKey("any", "Of each KEY that is varied its value in the cell."),
                **_keys(Row),
            },
        ),
        "crossings": JsonKey(
            "list of objects",
            "Where the better of two mechanisms changes along the horizontal axis.",
            _keys(Crossing),
        ),
    }


@cache
def _figures() -> Keys:
    hypothetical = {
        "epsilon": JsonKey("number or null", _meaning(Figures, "amplified_epsilon")),
        "renyi_epsilon": JsonKey("number or null", _meaning(Figures, "amplified_renyi_epsilon")),
        "is_exact": JsonKey("boolean", "False: both epsilons are upper bounds."),
        "probability": JsonKey("number", "Probability with which a device is drawn in its turn."),
        "partitions": JsonKey("integer", "Parts of the population that take turns."),
        "compositions": JsonKey("integer", "How often each part has its turn."),
        "assumption": _text("What is supposed, in words; no run of fedray does so by itself."),
    }
    losses = ("max_error", "rms_error", "max_loss", "rms_loss")
    return _keys(
        Figures,
        "kind paper rounds min_sep max_participations sensitivity sensitivity_is_exact "
        "sensitivity_theorem sensitivity_lower_bound worst_pattern max_error rms_error max_loss "
        "rms_loss noise_multiplier mu rho epsilon delta hypothetical parameters",
        kind=_text("Kind of the mechanism."),
        paper=_text("Where the mechanism comes from."),
        **_keys(MinSep),
        sensitivity=JsonKey("number", _meaning(Loss, "sensitivity")),
        sensitivity_is_exact=JsonKey("boolean", _meaning(Sensitivity, "is_exact")),
        sensitivity_theorem=_text(_meaning(Sensitivity, "theorem")),
        sensitivity_lower_bound=JsonKey("number", _meaning(Sensitivity, "lower_bound")),
        worst_pattern=JsonKey(
            "list of integers", "Rounds of a device that attain the lower bound."
        ),
        **_keys(Loss, " ".join(losses)),
        hypothetical=JsonKey(
            "object", "Figures under Poisson sampling; only with `--sampling`.", hypothetical
        ),
        parameters=JsonKey("object", "The mechanism's own parameters, as in its file."),
    )


def _optimize() -> Keys:
    return {
        "targets": JsonKey(
            "list of objects",
            "The same figures for each of the weighted outcomes, the weightiest first; only with "
            "`--targets` of several outcomes.",
            _figures(),
        ),
        "seconds": JsonKey("number", "Wall-clock time of the search in seconds."),
        "interrupted": JsonKey(
            "boolean", "Whether Ctrl-C ended the search before the optimum was found."
        ),
    }
