"""Assumptions behind the figures of an audit, in plain words. Every audit prints them."""

from collections.abc import Mapping
from typing import NamedTuple

from fedray.base.input_files import files_text
from fedray.base.rounding import given, shown_noise
from fedray.mechanisms.accounting.clip_count import count_noise_multiplier
from fedray.scenario import Scenario
from fedray.scenario.data import FormedData
from fedray.trace.imported import AS_THEY_ARE, BY_LIST, BY_RANK, COPIED, ImportedTrace

_ROWS = "found by the import, in the rows of the log's rounds"
_TIMES = "found by the import, in the values of the log's times"
_REPEATS = "told to the import: what repeated rows are; it counted them"
NOTICED = (_ROWS, _TIMES, _REPEATS)
"""Sources of assumptions that every summary of an audit shows."""
_ROUNDS_FILE = "told to the import: the rounds file"
UNIT_SOURCE = "told to the import: the columns that name a device"

UNSEEN = "cannot be seen in a trace"
ASSUMED = "assumed; " + UNSEEN
"""Source of assumptions about the deployment that no trace can show."""
_OF_EVERY_AUDIT = "assumed, or not accounted for, in every audit; " + UNSEEN
_RUN = "the scenario that was run"

_CENTRAL = (
    "The aggregator that adds the noise is trusted (central model), and every model after every "
    "round is released."
)
_FLOATING = (
    "Noise is drawn in floating-point numbers; attacks on their last bits are not accounted for."
)
_ADJACENCY = "Adjacency: one unit's updates are replaced by zeros (zero-out)."
OF_EVERY_AUDIT = (
    _ADJACENCY,
    _CENTRAL,
    "Every update was clipped to the clip norm, and the noise is the mechanism's with the stated "
    "multiplier.",
    "When devices took part is not protected. The observed figures take the recorded rounds as "
    "they happened, and as "
    "not depending on released models. If an app is used more, or less, because of the models, "
    "only the enforced "
    "figures are a guarantee.",
    _FLOATING,
    "Tuning of hyperparameters on the same devices, and other runs on them, are not accounted for.",
)

_OF_DEVICES = {
    _CENTRAL: "The server sees sums of secure aggregation and nothing else (distributed model), "
    "and every model after every round is released.",
    _FLOATING: "Noise is drawn by the devices, exactly and in whole numbers; every accepted device "
    "is taken to add its own.",
}
"""Assumptions of `OF_EVERY_AUDIT` that read differently if the devices add the noise, with their
replacements."""
_OF_COUNTS = {
    _ADJACENCY: "Adjacency: one unit's updates are replaced by zeros (zero-out), and a unit that "
    "is zeroed out counts as one half in the counts of short updates.",
}
"""The same if the clip norm follows noisy counts of short updates."""


class Assumption(NamedTuple):
    """An assumption behind the figures, and its source.

    text: a sentence.
    source: an argument of the import, the log, or "nobody" for a fact that cannot be observed.
    kind: term that it defines: "unit", "adjacency", "trust"; of answers "unit of answers"
        and "trust" with the trust model's kind; empty for any other.
    """

    text: str
    source: str
    kind: str = ""


INITIAL = (
    "The training starts from a given model. If data of these devices made or chose that model, it "
    "spent privacy that is not accounted for."
)
COUNTED = (
    "The words, tokens or classes that a model knows were counted over the data of the training "
    "clients without noise, which epsilon does not cover; data.vocabulary_file or data.values "
    "avoids it."
)
WITHOUT_NOISE = (
    Assumption(
        "Rounds released exact sums of updates: whoever sees the models may learn what a device "
        "contributed.",
        _RUN,
    ),
)
"""In place of all assumptions, for a run without noise."""

SCALED_NOISE = (
    "In each round {sample} of the {goal} accepted devices really trained, and the noise on their "
    "sum was scaled by {sample} / the number accepted, so that the signal-to-noise ratio is that "
    "of the full cohort, as is the practice of DP-FTRL studies. The privacy stated is that of the "
    "full cohort with full noise; this simulation's own model has no such guarantee."
)

SHORT_COUNTED = (
    "The clip norm follows a quantile of the updates' norms, so the count of short updates of "
    "every round is released too, by the same mechanism. Sums of updates have the noise multiplier "
    "{updates} and counts {counts}; both together have {both}. Figures at that noise "
    "multiplier cover both, and figures at another cover the sums only. A unit that is zeroed out "
    "counts as one half, as a device without examples does, so one contribution changes a count by "
    "at most 1/2 (Andrew et al. 2021). A device that sent an update of zeros would count as short, "
    "and its count would change by 1. Where entries of C'C are negative, rho of both is an upper "
    "bound."
)


BUFFERED = (
    "Rounds are buffers of {goal} reports, each used at most {staleness} rounds after its device "
    "was sent the model. Min-sep counts buffers. A device has at most one report in a buffer. "
    "{weights}"
)
"""Assumption of buffered rounds. The round that uses a report decides its noise and clip norm."""
UNWEIGHTED = "All reports count alike."
WEIGHTED = (
    "Each clipped update was scaled by a function of its staleness alone, at most 1. The observed "
    "sensitivity takes the recorded weights; the sensitivity under limits, enforced and claimed "
    "ones included, is that of weight 1, which is an upper bound."
)
STORED = (
    "Devices upload what is trained on, and a program on the server keeps it until its rounds are "
    "over. That program is trusted with the uploads, draws them as its schedule says, and takes "
    "one upload of a device in a window. Times of participations are those of the uploads."
)
"""Assumption of runs whose server stores uploads."""

STOPPED = (
    "privacy.stop_at ended the run, or would have, by the rounds in which devices were accepted. "
    "The observed figures are within it by construction. When the run ended tells of these rounds, "
    "which are not protected; the enforced figures do not rest on the budget."
)
STOPPED_BUFFERED = (
    "It counted every report with weight 1, whatever its staleness, so the run may have ended "
    "earlier than the observed figures ask for."
)


FILTERED = (
    "privacy.stop_at was kept by a filter: a device was excluded, for good, before the round that "
    "would have brought it beyond the budget, as counted over all {rounds:,} rounds of the run. "
    "The observed figures are within it by construction, and the filtered ones hold in every run, "
    "also if taking part depends on released models. Exclusion follows from a device's own "
    "participations and the round alone, never from updates."
)


def assumptions_of(
    scenario: Scenario | None, trace: ImportedTrace | None
) -> tuple[Assumption, ...]:
    """Returns the assumptions of an audit, each a sentence with its source; those common to all
    audits come first.

    Args:
        scenario: scenario of a simulated run; None for a log.
        trace: an imported log, which has assumptions of its own; None for a simulated run.
    """
    if trace is not None:
        unit = Assumption(
            f"Unit of privacy: one {trace.unit}, and all its updates.", UNIT_SOURCE, "unit"
        )
        rows = " but those left out" if trace.incompleteness else ""
        joined = ", once ids that differ in writing are joined" * bool(trace.run.get("joined_ids"))
        names = f"The log names every participation{rows}, and no unit under two names{joined}."
        return (unit, *_of_every_audit({}), Assumption(names, ASSUMED), *assumptions_of_log(trace))
    assert scenario is not None
    unit = Assumption(
        "Unit of privacy: one device and all its updates.",
        "how the trace is keyed: a row per device and round",
        "unit",
    )
    released = (
        "The seed is in the trace and on its page. All noise of this simulation follows from it, "
        "so a real deployment "
        "must draw its noise from a secret source."
    )
    encoding = scenario.privacy.encoding.assumption
    replaced = _OF_DEVICES if scenario.privacy.encoding.adds_noise else {}
    if scenario.count_noise is not None:
        replaced = replaced | _OF_COUNTS
    budget = _budget(scenario)
    stored = STORED if scenario.rounds.uploads is not None else ""
    texts = (encoding, *_counted(scenario), budget, stored, _buffered(scenario))
    return (
        unit,
        *_of_every_audit(replaced),
        # A text is empty if the scenario lacks its subject.
        *(Assumption(text, _RUN) for text in texts if text),
        Assumption(released, "the seed that the trace records"),
        *_of_training(scenario),
    )


def _of_every_audit(replaced: Mapping[str, str]) -> tuple[Assumption, ...]:
    """Returns the assumptions of every audit, with some of them replaced."""
    defining = {
        _ADJACENCY: ("the definition that the sensitivity uses", "adjacency"),
        _CENTRAL: (ASSUMED, "trust"),
    }
    return tuple(
        Assumption(replaced.get(text, text), *defining.get(text, (_OF_EVERY_AUDIT,)))
        for text in OF_EVERY_AUDIT
    )


def _of_training(scenario: Scenario) -> tuple[Assumption, ...]:
    training = scenario.training
    if not training.enabled:
        return ()
    metrics = Assumption(
        "The recorded train_loss and clipped_share of each round are computed from updates without "
        "noise. They are a simulation's records; to publish them from a deployment would cost "
        "privacy that is not accounted for.",
        "the metrics that the trained run records",
    )
    text = training.weighting.assumption
    if not text and scenario.trains_a_sample:
        goal = f"{scenario.rounds.least_accepted}{' or more' * scenario.rounds.keeps_surplus}"
        text = SCALED_NOISE.format(sample=training.cohort_sample, goal=goal)
    is_counted = isinstance(scenario.data, FormedData) and scenario.data.is_counted
    texts = (text, "" if training.initial is None else INITIAL, COUNTED if is_counted else "")
    return (metrics, *(Assumption(each, _RUN) for each in texts if each))


def _budget(scenario: Scenario) -> str:
    if scenario.privacy.stop_at is None:
        return ""
    if scenario.privacy.at_limit == "exclude":
        return FILTERED.format(rounds=scenario.rounds.count)
    return f"{STOPPED} {STOPPED_BUFFERED}" if scenario.rounds.buffer is not None else STOPPED


def _buffered(scenario: Scenario) -> str:
    buffer = scenario.rounds.buffer
    if buffer is None:
        return ""
    return BUFFERED.format(
        goal=scenario.rounds.report_goal,
        staleness=buffer.max_staleness,
        weights=UNWEIGHTED if buffer.weighting.kind == "constant" else WEIGHTED,
    )


def _counted(scenario: Scenario) -> tuple[str, ...]:
    if scenario.count_noise is None:
        return ()
    of_counts = count_noise_multiplier(scenario.count_noise)
    return (
        SHORT_COUNTED.format(
            updates=shown_noise(scenario.update_noise_multiplier),
            counts=given(of_counts),
            both=given(scenario.privacy.noise_multiplier),
        ),
    )


def assumptions_of_log(log: ImportedTrace) -> tuple[Assumption, ...]:
    """Returns the assumptions that follow from how a log was read: from arguments of its import, or
    from the log itself."""
    run, found = log.run, []
    times = run.get("times") or {"column": None, "rounds_file_form": None}
    found += [Assumption(each, _TIMES) for each in times.get("doubts") or ()]
    if len(log.device_columns) > 1:
        text = (
            "A person behind several of these units has less protection than a single unit "
            "(group privacy)."
        )
        found.append(Assumption(text, UNIT_SOURCE))
    text = files_text([each["bytes"] for each in run["files"]], run["skipped_files"])
    source = "told to the import: the log; it read all files but marks"
    found.append(Assumption(f"The log is complete: {text}.", source))
    found.append(Assumption(_numbering_assumption(log), rounds_source(log)))
    if sparse := run.get("sparse_rounds"):
        found.append(Assumption(sparse, _ROWS))
    if run["rounds_out_of_order"]:
        text = (
            f"By the log's times, {run['rounds_out_of_order']:,} rounds ended before the round "
            "numbered just before them began, so the order of numbers may not be that of "
            "release."
        )
        found.append(Assumption(text, "found by the import, in the times of the log"))
    if run["where"]:
        text = f"Only rows with {' and '.join(run['where'])} are participations; rows without: "
        source = "told to the import: the conditions; it counted the rows"
        found.append(Assumption(f"{text}{log.filtered_rows:,}.", source))
    if copies := sum(each.rows for each in log.left_out if each.reason == COPIED):
        text = f"Rows {COPIED}, their time included, are copies of one record: {copies:,}."
        found.append(Assumption(text, "counted by the import"))
    if run["repeated_rows"]:
        meaning = "Each is a contribution of its own, clipped by itself, and counts in full."
        if log.repeats == "once":
            meaning = "They are records of the same contribution."
            if times["column"] is not None:
                meaning += " It lasted from the first to the last of their times."
        some = run.get("repeated_examples")
        text = (
            "Rows that repeat another row's device and round: "
            f"{run['repeated_rows']:,}. {meaning}"
            + (f" Among them: {some}." if some and log.repeats == "each" else "")
        )
        found.append(Assumption(text, _REPEATS))
    if times["column"] is not None:
        text = f"Times of participations are the log's column {times['column']!r}: "
        source = "told to the import: the column; it found the form"
        found.append(Assumption(f"{text}{times['form']}.", source))
    if times["rounds_file_form"] is not None:
        text = f"Times of rounds are those of the rounds file: {times['rounds_file_form']}."
        found.append(Assumption(text, _ROUNDS_FILE))
    if log.incompleteness:
        found.append(Assumption(log.incompleteness, "counted by the import"))
    return tuple(found)


def rounds_source(log: ImportedTrace) -> str:
    """Returns the source of the list of rounds that released a model."""
    return {
        BY_RANK: "told to the import: all rounds that occur, and no others",
        BY_LIST: _ROUNDS_FILE,
    }.get(log.run["numbering"], "told to the import: the number of rounds")


def _numbering_assumption(log: ImportedTrace) -> str:
    numbering = log.run["numbering"]
    if numbering == AS_THEY_ARE:
        return (
            f"Rounds 0 .. {log.committed_rounds - 1} of the log each released a model, in "
            "this order."
        )
    first = log.round_label(0)
    last = log.round_label(log.committed_rounds - 1)
    if numbering == BY_RANK:
        return (
            f"Every round that occurs in the log ({first} .. {last}) released a model, in "
            "order of these numbers, and no other "
            f"round did: {log.committed_rounds:,} rounds."
        )
    empty = log.run["empty_rounds"]
    return (
        "The rounds file lists every round that released a model, in order: "
        f"{log.committed_rounds:,} rounds, {first} to "
        f"{last} in the log."
        + (f" In {empty:,} of them no device of this log took part." if empty else "")
    )
