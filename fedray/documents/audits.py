"""The keys of audits, and of reports."""

from functools import cache

from fedray.audit.audit import Audit, MechanismAudit
from fedray.audit.calibration import CalibratedGuarantee, TraceCalibration
from fedray.audit.distribution import DevicePrivacy, Frontier, FrontierEntry, Quantile
from fedray.audit.filtered import Exclusions
from fedray.audit.findings import Evidence, Finding, Summary
from fedray.audit.guarantees import Guarantee
from fedray.audit.ledger import LedgerEntry
from fedray.audit.rules import Violations
from fedray.audit.several_tasks import Composition, TasksAudit, TaskSpending
from fedray.documents.keys import JsonKey, Keys, keys_of, meaning_of, text, written
from fedray.encoding.tables import DiscreteGaussian
from fedray.mechanisms.comparison import Utility
from fedray.mechanisms.strategy import Sensitivity
from fedray.trace.imported import LeftOut

_ONLY_WITH_CLAIM = " Only with `--claim`."


@cache
def audit_keys() -> Keys:
    """Of every audited trace."""
    of_sum = {
        "devices": JsonKey("integer", "Devices whose noise is in the sum."),
        "noise_multiplier": JsonKey("number", "Noise multiplier of the sum."),
    }
    encoding = {
        **keys_of(
            DiscreteGaussian,
            "kind scale modulus_bits parameters",
            kind=text("Kind of the encoding; it has those of the next keys that its table has."),
        ),
        "noise_is_relative_to": text("What the noise multiplier is measured by."),
        "least_noise": JsonKey(
            "object or null",
            "The round with the least noise, on which observed figures rest; null where the server "
            "adds the noise.",
            {"round": JsonKey("integer", "Number of the round, from 0."), **of_sum},
        ),
        "least_permitted_noise": JsonKey(
            "object or null",
            "The least noise that the rules permit a round, on which enforced and claimed figures "
            "rest; null where the server adds the noise.",
            of_sum,
        ),
    }
    of_class = {
        "name": text("Name of the class."),
        "share": JsonKey("number", "Its share of the population."),
        "eligible_share": JsonKey(
            "number",
            "Share of its devices that are eligible at once, whatever timers say: the mean of the "
            "first week, estimated from a sample.",
        ),
        "selected": JsonKey("integer", "Times that one of its devices was selected."),
        "participations": JsonKey("integer", "Accepted updates of its devices."),
        "devices": JsonKey("integer", "Devices of it that took part at least once."),
        "least_gap": JsonKey(
            "integer",
            "Least difference between the rounds of two participations of one device; 0 if none "
            "took part twice.",
        ),
        "most": JsonKey("integer", "Most participations of a device."),
    }
    release = {
        "query": text("What was released."),
        "noise_multiplier": JsonKey("number", "Its noise multiplier."),
        "rho": JsonKey("number", "zCDP of it."),
    }
    return keys_of(
        Audit,
        "trace digest ended rounds devices participations min_sep max_participations "
        "short_run_note participations_per_device classes violations exclusions left_out "
        "filtered_rows incompleteness mechanisms guarantees releases utility utility_basis "
        "utility_rho utility_note verdicts claim_holds claim_sentence findings encoding "
        "assumptions",
        trace=text("Directory of the trace."),
        participations_per_device=JsonKey(
            "object", "How many devices took part so many times; the keys are the numbers of times."
        ),
        classes=JsonKey("list of objects", "", of_class),
        violations=JsonKey("object or null", "", keys_of(Violations)),
        exclusions=JsonKey("object or null", "", _exclusions()),
        left_out=JsonKey("list of objects", "", keys_of(LeftOut)),
        mechanisms=JsonKey("list of objects", "", _mechanism_audit()),
        guarantees=JsonKey(
            "list of objects",
            "The guarantees of the first mechanism once more; empty without a mechanism.",
            _guarantee_keys(),
        ),
        releases=JsonKey("list of objects", "", release),
        utility=JsonKey("list of objects", "", keys_of(Utility)),
        utility_basis=JsonKey(
            "text or null", "Name of the guarantee whose rho all rows of `utility` have."
        ),
        utility_rho=JsonKey("number or null", "That rho (zCDP)."),
        utility_note=text("Why mechanisms are not compared by their noise multipliers."),
        verdicts=JsonKey(
            "object by kind or null",
            "How a claim fared in `privacy` and in `participation`, as far as it says something of "
            "them; null without a claim.",
            keys_of(Summary),
        ),
        findings=JsonKey("list of objects", "", _finding()),
        encoding=JsonKey(
            "object or null",
            "How updates were sent, and what their noise is measured by; null for a log.",
            encoding,
        ),
    )


def audit_command_keys() -> Keys:
    """What `fedray audit` adds to those of an audit."""
    entry = keys_of(
        FrontierEntry,
        "fewest most devices min_sep spans sensitivity is_exact",
        sensitivity=JsonKey("number", ""),
        is_exact=JsonKey("boolean", meaning_of(Sensitivity, "is_exact")),
    )
    in_full = {
        "device_privacy": JsonKey(
            "object or null",
            meaning_of(Audit, "device_privacy") + _ONLY_WITH_CLAIM,
            keys_of(
                DevicePrivacy,
                "quantiles mean_rho is_exact",
                quantiles=JsonKey("list of objects", "", keys_of(Quantile)),
            ),
        ),
        "frontier": JsonKey(
            "object or null",
            meaning_of(Audit, "frontier") + _ONLY_WITH_CLAIM,
            keys_of(
                Frontier,
                "sensitivity entries",
                entries=JsonKey("list of objects", "", entry),
            ),
        ),
        "ledger": JsonKey(
            "list of objects", meaning_of(Audit, "ledger") + _ONLY_WITH_CLAIM, keys_of(LedgerEntry)
        ),
    }
    added = {
        "integrity": text("What protects the figures of the trace against damage, as a sentence."),
        "digest_verified": _digest_verified(),
        "events": text("Path of the events; only with `--events`."),
        "evidence": text("Path of what breaks the claim; only with `--evidence`."),
    }
    return {**in_full, **added, **written()}


def audit_of_tasks_keys() -> Keys:
    """Of an audit of several tasks."""
    spent = {
        **keys_of(TaskSpending),
        "rounds": JsonKey("list of integers", "Rounds in which the device took part, in order."),
    }
    observed = {
        **keys_of(Composition, "rho epsilon is_exact"),
        "device": JsonKey("integer", meaning_of(Composition, "worst_device")),
        "tasks": JsonKey("list of objects", meaning_of(Composition, "spent"), spent),
        "reason": text("Why no guarantee may rest on what was observed: a sentence."),
    }
    largest = {
        "rho": JsonKey("number", meaning_of(Composition, "bound_rho")),
        "epsilon": JsonKey("number", meaning_of(Composition, "bound_epsilon")),
        "tasks": JsonKey("object", meaning_of(Composition, "largest")),
    }
    enforced = {
        "rho": JsonKey("number or null", meaning_of(Composition, "enforced_rho")),
        "epsilon": JsonKey("number or null", meaning_of(Composition, "enforced_epsilon")),
        "reason": text(meaning_of(Composition, "enforced_reason")),
    }
    composition = {
        **keys_of(Composition, "delta devices devices_by_tasks"),
        "observed": JsonKey("object", "What the device spent that spent most.", observed),
        "sum_of_largest": JsonKey(
            "object", "Tasks added up, of which each counts with its largest device.", largest
        ),
        "enforced": JsonKey("object", "The enforced limits of the tasks, added up.", enforced),
        "quantiles": JsonKey(
            "list of objects",
            "What devices spent over all tasks.",
            keys_of(
                Quantile,
                "share rho",
                rho=JsonKey("", "rho (zCDP) that these devices do not exceed."),
            ),
        ),
        **keys_of(Composition, "mean_rho"),
    }
    return {
        "run": text(meaning_of(TasksAudit, "path")),
        **keys_of(
            TasksAudit,
            "digest composition without_rounds",
            composition=JsonKey("object", "What devices spent over all tasks.", composition),
        ),
        "assumptions": JsonKey(
            "list of text", "What the composition rests on, beside the audit of each task."
        ),
        "tasks": JsonKey("object by task", meaning_of(TasksAudit, "audits"), audit_keys()),
    }


def audit_of_tasks_command_keys() -> Keys:
    """What `fedray audit` adds to those of an audit of several tasks."""
    return {"digest_verified": _digest_verified(), **written()}


def report_keys() -> Keys:
    """Of `fedray report`."""
    return {**written(), "page": text("Path of the page.")}


def calibration_keys() -> Keys:
    """Of noise that is calibrated to a trace."""
    calibrated = {**keys_of(CalibratedGuarantee, "noise_multiplier"), **_guarantee_keys()}
    return keys_of(
        TraceCalibration,
        "trace digest kind parameters target_epsilon target_rho delta run_noise_multiplier "
        "enforced observed notes",
        trace=text("Directory of the trace."),
        kind=text("Kind of the mechanism."),
        parameters=JsonKey("object", "The mechanism's own parameters, as in its file."),
        enforced=JsonKey("object", "", calibrated),
        observed=JsonKey("object", "", calibrated),
    )


@cache
def _guarantee_keys() -> Keys:
    """Of a guarantee."""
    return keys_of(
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
    return keys_of(
        MechanismAudit,
        "name is_own parameters noise_multiplier binding_device binding_rounds observed_limits "
        "sampled filtered guarantees",
        parameters=JsonKey("object", "The mechanism's own parameters, as in its file."),
        binding_rounds=JsonKey("list of integers", "The rounds of that device."),
        observed_limits=JsonKey("object", "", _guarantee_keys()),
        sampled=JsonKey("object or null", "", _guarantee_keys()),
        filtered=JsonKey("object or null", "", _guarantee_keys()),
        guarantees=JsonKey("list of objects", "", _guarantee_keys()),
    )


def _exclusions() -> Keys:
    return keys_of(
        Exclusions,
        "devices first_round median_round participations of_others came_back",
        devices=JsonKey("integer", "How many were excluded."),
        first_round=JsonKey("integer or null", "Round from which the first was excluded."),
        median_round=JsonKey("integer or null", "Median of the rounds from which they were."),
    )


def _finding() -> Keys:
    evidence = JsonKey("list of objects", "", keys_of(Evidence))
    return {**keys_of(Finding, evidence=evidence), **keys_of(Finding, "evidence_note")}


def _digest_verified() -> JsonKey:
    return JsonKey("boolean", "Whether `--verify` recomputed every digest.")
