"""Results in the terminal: their tables, and the paragraphs between them."""

from collections.abc import Iterator

from fedray.audit.assumptions import NOTICED
from fedray.audit.audit import Audit
from fedray.audit.calibration import TraceCalibration
from fedray.audit.guarantees import Guarantee
from fedray.audit.mechanism_audit import MechanismAudit
from fedray.audit.several_tasks import ASSUMPTIONS, TasksAudit
from fedray.base.rounding import counted, given, shown_min_sep, simulated_time
from fedray.report.audits import (
    MOST_SHOWN,
    answers_table,
    audit_tables,
    calibration_tables,
    composition_tables,
    devices_table,
    epsilon_text,
    evidence_rounds,
    evidence_table,
    observers_table,
    persons_tables,
    rule_facts,
    short_guarantees_table,
    tasks_table,
    utility_table,
    worst_devices_table,
)
from fedray.report.groups import groups_tables
from fedray.report.table import Paragraph, Piece, Table, bullets
from fedray.trace.trained import TrainedRun


def short_audit_text(audit: Audit) -> Iterator[Piece]:
    """Yields the answer of an `audit`: its verdict and guarantees, then its participation, rows
    that were left out, and notes."""
    yield from _verdict(audit)
    if audit.mechanisms:
        yield short_guarantees_table(audit)
    if audit.answers is not None:
        yield answers_table(audit.answers)
    yield from persons_tables(audit)
    if (observers := observers_table(audit)) is not None:
        yield observers.brief()
    b, rounds = shown_min_sep(audit.min_sep), counted(audit.rounds, "round")
    if audit.scenario is not None and audit.ended != "completed":
        rounds = f"{audit.rounds:,} of {counted(audit.scenario.rounds.count, 'round')}"
    in_days = "" if audit.days is None else f" in {simulated_time(86_400 * audit.days)}"
    yield Paragraph(
        "",
        f"{rounds}{in_days}, {counted(audit.devices, 'device')}, "
        f"{counted(audit.participations, 'participation')}; observed min-sep {b}, at most "
        f"{counted(audit.max_participations, 'participation')} of a device.",
    )
    yield from _broken_by(audit)
    yield from _left_out(audit)
    noticed = (each.text for each in audit.rests_on if each.source in NOTICED)
    yield from (Paragraph("note      ", text) for text in noticed)
    if audit.short_run_note:
        yield Paragraph("", audit.short_run_note)
    if facts := rule_facts(audit):
        yield Table.facts("", facts)


def audit_text(audit: Audit) -> Iterator[Piece]:
    """Yields an `audit`: rows that were left out, the verdict, its tables, the claim, and the
    assumptions."""
    yield from _verdict(audit)
    yield from _left_out(audit)
    yield ""
    yield from audit_tables(audit)
    if audit.mechanisms:
        yield from _reasons(audit.mechanisms[0], bool(audit.findings))
    if audit.utility:
        yield utility_table(audit)
    if audit.findings:
        yield from _claim(audit)
    yield "What these figures assume"
    yield from bullets(audit.assumptions)


def _verdict(audit: Audit) -> Iterator[Paragraph]:
    yield from end_of_run(audit)
    yield Paragraph("", audit.verdict)
    if audit.claim is None:
        return
    epsilon, delta = epsilon_text(audit.supported_epsilon), given(audit.claim.delta)
    value = f"{epsilon} at delta {delta},"
    if audit.supported_epsilon is None:
        value = "none, because" if audit.other_noise else "none:"
    said = f"Epsilon that may be published: {value} {audit.supported_by}. {audit.would_do or ''}"
    yield Paragraph("", said.rstrip())
    if audit.without_breakers is not None:
        yield Paragraph("what if   ", audit.without_breakers.reason)


def _broken_by(audit: Audit) -> Iterator[Paragraph]:
    for each in audit.findings:
        if each.broken_by and each.evidence:
            three = each.evidence[:3]
            some = [f"{e.device} in {evidence_rounds(e, 6)}: {e.shows}" for e in three]
            if each.breakers > 3:
                some.append(f"and {each.breakers - 3:,} more")
            yield Paragraph("broken    ", f"{each.name}, by device {'; '.join(some)}")


def end_of_run(audit: Audit) -> Iterator[Paragraph]:
    """Yields how the run of an `audit` ended, unless it ended as planned."""
    # The end of a run deserves a line only if it was not as planned; the verdict has that of a
    # training.
    if audit.ended not in ("completed", "imported") and not audit.stopped:
        yield Paragraph("ended     ", f"{audit.ended}.")


def _left_out(audit: Audit) -> Iterator[Paragraph]:
    for each in audit.left_out:
        rows = counted(each.rows, "row")
        yield Paragraph("left out  ", f"{rows} {each.reason}, such as {each.example}")
    if audit.filtered_rows:
        text = f"rows that do not meet the conditions of the import: {audit.filtered_rows:,}"
        yield Paragraph("left out  ", text)
    if audit.incompleteness:
        text = f"The figures are of the other rows. {audit.left_out_bound}"
        yield Paragraph("WARNING   ", f"{audit.incompleteness} {text}")


def _reasons(mechanism: MechanismAudit, has_claim: bool) -> Iterator[Piece]:
    """Yields the subject of each guarantee, and the reason why it holds or does not hold."""
    yield _observed_sentence(mechanism.observed)
    yield Paragraph("enforced  ", _enforced_sentence(mechanism.enforced))
    for each in mechanism.of_server:
        said = f"is not known: {each.reason}."
        if each.sensitivity is not None:
            said = f"holds for {each.scope}. Why: {each.reason}."
        yield Paragraph(f"{each.name:<10}", said)
    if has_claim:
        yield Paragraph("claimed   ", f"{mechanism.claimed.reason}.")
    yield ""


def _observed_sentence(observed: Guarantee) -> Paragraph:
    text = f"is a statement about {observed.scope}; {observed.reason}."
    return Paragraph("observed  ", text)


def _enforced_sentence(enforced: Guarantee) -> str:
    if enforced.sensitivity is None:
        return f"is not known: {enforced.reason}."
    if enforced.may_rest_on:
        return f"holds for {enforced.scope}, and may be published. Why: {enforced.reason}."
    return f"may not be published by itself: {enforced.reason}."


def _claim(audit: Audit) -> Iterator[Piece]:
    """Yields the evidence, and the distribution over devices."""
    evidence = evidence_table(audit.findings, MOST_SHOWN)
    if evidence.rows:
        yield evidence
    if audit.device_privacy is not None:
        yield worst_devices_table(audit.worst_devices)
        yield devices_table(audit.device_privacy)


def tasks_text(audit: TasksAudit, verbose: bool = False) -> Iterator[Piece]:
    """Yields the `audit` of every task, in short or whole; the tasks side by side; and their
    composition."""
    for name, each in audit.audits.items():
        yield f"Task {name}"
        for piece in audit_text(each) if verbose else short_audit_text(each):
            yield piece.under(each.of) if isinstance(piece, Table) else piece
        yield ""
    yield tasks_table(audit)
    for name in audit.without_rounds:
        yield Paragraph("", f"Task {name} committed no round, so it released nothing.")
    yield from composition_tables(audit.composition)
    if verbose:
        yield from bullets(ASSUMPTIONS)


def calibration_text(calibration: TraceCalibration) -> Iterator[Piece]:
    """Yields the tables of a `calibration`, and the reasons for its guarantees."""
    yield from calibration_tables(calibration)
    if calibration.claimed is not None:
        yield Paragraph("claimed   ", f"{calibration.claimed.guarantee.reason}.")
    yield Paragraph("enforced  ", _enforced_sentence(calibration.enforced.guarantee))
    yield _observed_sentence(calibration.observed.guarantee)
    yield from bullets(calibration.notes)


def training_text(title: str, trained: TrainedRun) -> Iterator[Piece]:
    """Yields a trained run: its training, and its warnings.

    Args:
        title: line above the table.
        trained: the run.
    """
    yield Table.facts(f"{title}: {trained.short}" if trained.short else title, trained.rows())
    for each in trained.groups:
        yield from groups_tables(each)
    yield from (Paragraph("WARNING   ", each) for each in trained.warnings)
    if trained.warnings:
        yield ""
