"""Assumptions behind the figures of an audit: tables of sentences, each with its source and the
audits that rest on it. Every audit prints them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fedray.base.input_files import files_text
from fedray.base.rounding import given, shown_noise
from fedray.encoding.tables import DeviceNoiseTable
from fedray.mechanisms.accounting.clip_count import count_noise_multiplier
from fedray.scenario import Scenario
from fedray.scenario.data import FormedData
from fedray.scenario.trust import AnyTrust, ServerTrust
from fedray.trace.imported import AS_THEY_ARE, BY_LIST, BY_RANK, COPIED, ImportedTrace
from fedray.trace.reader import Trace

UNSEEN = "cannot be seen in a trace"
ASSUMED = "assumed; " + UNSEEN
"""Source of assumptions about the deployment that no trace can show."""
_IN_EVERY_AUDIT = "assumed, or not accounted for, in every audit; " + UNSEEN
_DEFINITION = "the definition that the sensitivity uses"
_RUN = "the scenario that was run"
_UNIT = "told to the import: the columns that name a device"
_ROUNDS_FILE = "told to the import: the rounds file"
_COUNTED = "counted by the import"
_ROWS = "found by the import, in the rows of the log's rounds"
_TIMES = "found by the import, in the values of the log's times"
_REPEATS = "told to the import: what repeated rows are; it counted them"
NOTICED = (_ROWS, _TIMES, _REPEATS)
"""Sources of assumptions that every summary of an audit shows."""


class Assumption(NamedTuple):
    """An assumption behind the figures of an audit."""

    text: str
    """A sentence."""
    source: str
    """An argument of the import, the log, the scenario, or that no trace can show it."""
    kind: str = ""
    """Term that it defines: "unit", "adjacency", "trust"; of answers "unit of answers", and "trust"
    with the trust model's kind; empty for any other."""


Of = TypeVar("Of", contravariant=True)


@dataclass(frozen=True, slots=True)
class Row(Generic[Of]):
    """A row of a table of assumptions, on which the audits of some scenarios or logs rest."""

    text: str | Callable[[Of], str | Sequence[str]]
    """The sentence, or a function that returns it, or several of one kind; nothing is assumed where
    it is empty."""
    source: str | Callable[[Of], str]
    """Source of the assumption, or a function that returns it."""
    when: Callable[[Of], Any] = lambda _: True
    """Function whose value is true if an audit rests on it."""
    kind: str = ""
    """Term that it defines, as in `Assumption`."""

    def of(self, audited: Of) -> Iterator[Assumption]:
        """Yields the assumptions about a scenario or a log."""
        if not self.when(audited):
            return
        text = self.text if isinstance(self.text, str) else self.text(audited)
        source = self.source if isinstance(self.source, str) else self.source(audited)
        for each in (text,) if isinstance(text, str) else text:
            if each:
                yield Assumption(each, source, self.kind)


ADJACENCY = "Adjacency: one unit's updates are replaced by zeros (zero-out)."
ADJACENCY_WITH_COUNTS = (
    "Adjacency: one unit's updates are replaced by zeros (zero-out), and a unit that is zeroed out "
    "counts as one half in the counts of short updates."
)
SERVER = (
    "The server, which adds the noise, is trusted (central differential privacy), and every model "
    "after every round is released."
)
DEVICES = (
    "The server sees only sums of secure aggregation, in which devices have added noise "
    "(distributed differential privacy), and every model after every round is released."
)
ENCLAVE = (
    "An enclave sums the updates and adds the noise. Its hardware and its code are trusted, its "
    "operator is not. Every model after every round is released."
)
LOCAL = (
    "Devices add noise to what they send (local differential privacy), and every model after every "
    "round is released."
)
CLIPPED = (
    "Every update was clipped to the clip norm, and the noise is the mechanism's with the stated "
    "multiplier."
)
UNPROTECTED_TIMES = (
    "When devices took part is not protected. The observed figures take the recorded rounds as "
    "they happened, and as not depending on released models. If an app is used more, or less, "
    "because of the models, only figures that may be published are a guarantee."
)
FLOATING = (
    "Noise is drawn in floating-point numbers; attacks on their last bits are not accounted for."
)
WHOLE_NUMBERS = (
    "Noise is drawn by the devices, exactly and in whole numbers; every accepted device is taken "
    "to add its own."
)
ENCRYPTED = "Messages are encrypted, so the network sees their times and sizes only."
HARDWARE = (
    "The enclave's hardware keeps its secrets. Devices send only to code whose recorded digest it "
    "attests."
)
POLICY = "The enclave keeps the rules of participation and makes the draws, not its operator."
STORE = (
    "The store opens agreed sums only, as long as at most {share} of the devices that run its "
    "protocol are malicious."
)
SHUFFLED = (
    "The shuffler removes senders and order, and does not help the operator; at most {share} of "
    "the devices do."
)
HONEST = (
    "At most {share} of the devices in a sum are malicious, and the others add their noise. Wrong "
    "noise or wrong updates cost accuracy, not privacy."
)
TUNING = (
    "Tuning of hyperparameters on the same devices, and other runs on them, are not accounted for."
)
OF_EVERY_AUDIT = (ADJACENCY, SERVER, CLIPPED, UNPROTECTED_TIMES, FLOATING, TUNING)
"""Assumptions of every audit, as they read for a server that adds the noise."""

INITIAL = (
    "The training starts from a given model. If data of these devices made or chose that model, it "
    "spent privacy that is not accounted for."
)
COUNTED = (
    "The words, tokens or classes that a model knows were counted over the data of the training "
    "clients without noise, which epsilon does not cover. data.vocabulary_file or data.values "
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
METRICS = (
    "The recorded train_loss and clipped_share of each round are computed from updates without "
    "noise. They are a simulation's records; to publish them from a deployment would cost privacy "
    "that is not accounted for."
)
CHOSEN_BY = {
    "public": "The end and the best round were chosen by {metric} on public held-out data, which "
    "costs no privacy.",
    "clients": "The end and the best round were chosen by {metric} on data of held-out clients, "
    "and what that reveals of them costs privacy that is not accounted for.",
    "callback": "A callback chose the end, and {metric} on held-out data the best round; what they "
    "read besides released models and public data costs privacy that is not accounted for.",
}
"""Sentences on the choice of a training's last and best rounds, by its origin
(`Stopped.chosen_by`)."""
SCALED_NOISE = (
    "In each round {sample} of the {goal} accepted devices really trained. The noise on their sum "
    "was scaled by {sample} / the number accepted, as is the practice of DP-FTRL studies. So the "
    "signal-to-noise ratio is that of the full cohort. The privacy stated is that of the "
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
    "privacy.stop_at was kept by a filter. A device was excluded, for good, before the round that "
    "would have brought it beyond the budget, as counted over all {rounds:,} rounds of the run. "
    "The observed figures are within it by construction, and the filtered ones hold in every run, "
    "also if taking part depends on released models. Exclusion follows from a device's own "
    "participations and the round alone, never from updates."
)
PUBLIC_SEED = (
    "The seed is in the trace and on its page. All noise of this simulation follows from it, so a "
    "real deployment must draw its noise from a secret source."
)
SEVERAL_TASKS = (
    "This is one of several tasks that shared the devices: what a device spent in the others is "
    "not in these figures. The audit of the whole run adds it up."
)
GROUP = (
    "A person behind several of these units has less protection than a single unit (group privacy)."
)


def _budget(run: Scenario) -> str:
    if run.privacy.at_limit == "exclude":
        return FILTERED.format(rounds=run.rounds.count)
    return f"{STOPPED} {STOPPED_BUFFERED}" if run.rounds.buffer is not None else STOPPED


def _buffers(run: Scenario) -> str:
    buffer = run.rounds.buffer
    assert buffer is not None
    return BUFFERED.format(
        goal=run.rounds.report_goal,
        staleness=buffer.max_staleness,
        weights=UNWEIGHTED if buffer.weighting.kind == "constant" else WEIGHTED,
    )


def _short_counts(run: Scenario) -> str:
    assert run.count_noise is not None
    return SHORT_COUNTED.format(
        updates=shown_noise(run.update_noise_multiplier),
        counts=given(count_noise_multiplier(run.count_noise)),
        both=given(run.privacy.noise_multiplier),
    )


def _scaled_noise(run: Scenario) -> str:
    goal = str(run.rounds.least_accepted)
    if run.rounds.keeps_surplus:
        goal += " or more"
    return SCALED_NOISE.format(sample=run.training.cohort_sample, goal=goal)


def _trains(run: Scenario) -> bool:
    return run.training.enabled


def _chosen_by(run: Scenario) -> str:
    assert run.training.stop is not None
    return CHOSEN_BY[run.training.stop.held_out].format(metric=run.training.stop.metric)


def _scales_noise(run: Scenario) -> bool:
    return _trains(run) and not run.training.weighting.assumption and run.trains_a_sample


def _counts_words(run: Scenario) -> bool:
    return _trains(run) and isinstance(run.data, FormedData) and run.data.is_counted


def _counts_short(audited: Scenario | ImportedTrace) -> bool:
    return isinstance(audited, Scenario) and audited.count_noise is not None


def _every_participation(log: ImportedTrace) -> str:
    rows = " but those left out" if log.incompleteness else ""
    joined = ", once ids that differ in writing are joined" if log.run.get("joined_ids") else ""
    return f"The log names every participation{rows}, and no unit under two names{joined}."


def _files(log: ImportedTrace) -> str:
    sizes = [each["bytes"] for each in log.run["files"]]
    return f"The log is complete: {files_text(sizes, log.run['skipped_files'])}."


def _times(log: ImportedTrace) -> dict[str, Any]:
    return log.run.get("times") or {"column": None, "rounds_file_form": None}


def _numbering(log: ImportedTrace) -> str:
    numbering, n = log.run["numbering"], log.committed_rounds
    if numbering == AS_THEY_ARE:
        return f"Rounds 0 .. {n - 1} of the log each released a model, in this order."
    first, last = log.round_label(0), log.round_label(n - 1)
    if numbering == BY_RANK:
        return (
            f"Every round that occurs in the log ({first} .. {last}) released a model, in "
            f"order of these numbers, and no other round did: {n:,} rounds."
        )
    empty = log.run["empty_rounds"]
    text = (
        f"The rounds file lists every round that released a model, in order: {n:,} rounds, {first} "
        f"to {last} in the log."
    )
    return f"{text} In {empty:,} of them no device of this log took part." if empty else text


def rounds_source(log: ImportedTrace) -> str:
    """Returns the source of the list of rounds that released a model."""
    return {
        BY_RANK: "told to the import: all rounds that occur, and no others",
        BY_LIST: _ROUNDS_FILE,
    }.get(log.run["numbering"], "told to the import: the number of rounds")


def _order(log: ImportedTrace) -> str:
    return (
        f"By the log's times, {log.run['rounds_out_of_order']:,} rounds ended before the round "
        "numbered just before them began, so the order of numbers may not be that of release."
    )


def _conditions(log: ImportedTrace) -> str:
    conditions = " and ".join(log.run["where"])
    return f"Only rows with {conditions} are participations; rows without: {log.filtered_rows:,}."


def _copied_rows(log: ImportedTrace) -> int:
    return sum(each.rows for each in log.left_out if each.reason == COPIED)


def _copies(log: ImportedTrace) -> str:
    return f"Rows {COPIED}, their time included, are copies of one record: {_copied_rows(log):,}."


def _repeats(log: ImportedTrace) -> str:
    text = f"Rows that repeat another row's device and round: {log.run['repeated_rows']:,}."
    if log.repeats == "once":
        text += " They are records of the same contribution."
        if _times(log)["column"] is not None:
            text += " It lasted from the first to the last of their times."
        return text
    text += " Each is a contribution of its own, clipped by itself, and counts in full."
    some = log.run.get("repeated_examples")
    return f"{text} Among them: {some}." if some else text


def _time_column(log: ImportedTrace) -> str:
    times = _times(log)
    return f"Times of participations are the log's column {times['column']!r}: {times['form']}."


def _rounds_file_times(log: ImportedTrace) -> str:
    return f"Times of rounds are those of the rounds file: {_times(log)['rounds_file_form']}."


_OF_EVERY_AUDIT: tuple[Row[Scenario | ImportedTrace], ...] = (
    Row(ADJACENCY, _DEFINITION, lambda audited: not _counts_short(audited), "adjacency"),
    Row(ADJACENCY_WITH_COUNTS, _DEFINITION, _counts_short, "adjacency"),
    Row(CLIPPED, _IN_EVERY_AUDIT),
    Row(UNPROTECTED_TIMES, _IN_EVERY_AUDIT),
    Row(TUNING, _IN_EVERY_AUDIT),
)
OF_TRUST: tuple[Row[AnyTrust], ...] = (
    Row(SERVER, ASSUMED, lambda trust: trust.kind == "server", "trust"),
    Row(DEVICES, ASSUMED, lambda trust: trust.kind == "devices", "trust"),
    Row(ENCLAVE, ASSUMED, lambda trust: trust.kind == "enclave", "trust"),
    Row(LOCAL, ASSUMED, lambda trust: trust.kind == "local", "trust"),
    Row(FLOATING, _IN_EVERY_AUDIT, lambda trust: not isinstance(trust, DeviceNoiseTable)),
    Row(WHOLE_NUMBERS, _IN_EVERY_AUDIT, lambda trust: isinstance(trust, DeviceNoiseTable)),
)
"""Assumptions about whoever adds the noise."""
OF_RUNS: tuple[Row[Scenario], ...] = (
    Row(
        "Unit of privacy: one device and all its updates.",
        "how the trace is keyed: a row per device and round",
        kind="unit",
    ),
    *_OF_EVERY_AUDIT,
    Row(lambda run: run.privacy.sent.assumption, _RUN),
    Row(_short_counts, _RUN, _counts_short),
    Row(_budget, _RUN, lambda run: run.privacy.stop_at is not None),
    Row(STORED, _RUN, lambda run: run.rounds.uploads is not None),
    Row(_buffers, _RUN, lambda run: run.rounds.buffer is not None),
    Row(PUBLIC_SEED, "the seed that the trace records"),
    Row(METRICS, "the metrics that the trained run records", _trains),
    Row(_chosen_by, _RUN, lambda run: _trains(run) and run.training.stop is not None),
    Row(lambda run: run.training.weighting.assumption, _RUN, _trains),
    Row(_scaled_noise, _RUN, _scales_noise),
    Row(INITIAL, _RUN, lambda run: _trains(run) and run.training.initial is not None),
    Row(COUNTED, _RUN, _counts_words),
)
"""Assumptions about the runs of a scenario."""
OF_IMPORTS: tuple[Row[ImportedTrace], ...] = (
    Row(lambda log: _times(log).get("doubts", ()), _TIMES),
    Row(GROUP, _UNIT, lambda log: len(log.device_columns) > 1),
    Row(_files, "told to the import: the log; it read all files but marks"),
    Row(_numbering, rounds_source),
    Row(lambda log: log.run.get("sparse_rounds", ""), _ROWS),
    Row(
        _order,
        "found by the import, in the times of the log",
        lambda log: log.run["rounds_out_of_order"],
    ),
    Row(
        _conditions,
        "told to the import: the conditions; it counted the rows",
        lambda log: log.run["where"],
    ),
    Row(_copies, _COUNTED, _copied_rows),
    Row(_repeats, _REPEATS, lambda log: log.run["repeated_rows"]),
    Row(
        _time_column,
        "told to the import: the column; it found the form",
        lambda log: _times(log)["column"] is not None,
    ),
    Row(_rounds_file_times, _ROUNDS_FILE, lambda log: _times(log)["rounds_file_form"] is not None),
    Row(lambda log: log.incompleteness, _COUNTED),
)
"""Assumptions about how a log was read."""
OF_LOGS: tuple[Row[ImportedTrace], ...] = (
    Row(lambda log: f"Unit of privacy: one {log.unit}, and all its updates.", _UNIT, kind="unit"),
    *_OF_EVERY_AUDIT,
    Row(_every_participation, ASSUMED),
    *OF_IMPORTS,
)
"""Assumptions about logs."""


def assumptions_of(
    scenario: Scenario | None, log: ImportedTrace | None, trust: AnyTrust | None = None
) -> tuple[Assumption, ...]:
    """Returns the assumptions of an audit, each a sentence with its source; definitions of terms
    come first.

    Args:
        scenario: scenario of a simulated run; None for a log.
        log: an imported log, which has assumptions of its own; None for a simulated run.
        trust: trust that a claim about a log states; None for a trusted server.
    """
    if log is not None:
        found = [each for row in OF_LOGS for each in row.of(log)]
    else:
        assert scenario is not None
        found = [each for row in OF_RUNS for each in row.of(scenario)]
        trust = scenario.privacy.trust
    found += [each for row in OF_TRUST for each in row.of(trust or ServerTrust())]
    return tuple(sorted(found, key=lambda each: not each.kind))


def assumptions_of_import(log: ImportedTrace) -> tuple[Assumption, ...]:
    """Returns the assumptions that follow from how a log was read: from arguments of its import, or
    from the log itself."""
    return tuple(each for row in OF_IMPORTS for each in row.of(log))


def other_tasks(trace: Trace | ImportedTrace) -> tuple[Assumption, ...]:
    """Returns the assumption of a task whose devices also took part in other tasks."""
    # Only the trace of one task of several has this table.
    if not isinstance(trace.run.get("task"), dict):
        return ()
    return (Assumption(SEVERAL_TASKS, "run.json of the trace"),)
