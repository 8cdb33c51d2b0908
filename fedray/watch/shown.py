"""Runs under a directory, as `fedray status` prints them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fedray.base.rounding import fine, given, up
from fedray.report.progress import duration
from fedray.report.table import Paragraph, Piece, Table, bullets
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.watch.entries import Entry, Listing, Privacy, TaskSoFar

_Value = TypeVar("_Value")


def status_text(listing: Listing) -> list[Piece]:
    """Returns the runs as text: those in progress, the interrupted ones, and the rest."""
    entries = listing.entries
    if not entries:
        return [Paragraph("", f"There are no runs under {listing.directory}.")]
    pieces: list[Piece] = []
    # A run whose last report came from another machine may still be running there.
    under_way = [each for each in entries if each.state in ("running", "elsewhere")]
    if under_way:
        bounds = [
            f"{each.path}: {bound_text(each.privacy)}"
            for each in under_way
            if each.privacy is not None
        ]
        notes = [f"{each.path}: {each.note}" for each in under_way if each.note]
        pieces += [_under_way_table(under_way), *bullets([*bounds, *notes])]
    rest = [each for each in entries if each not in under_way]
    if rest:
        problems = [f"{each.path}: {each.note}" for each in rest if each.state == "damaged"]
        pieces += [_others_table(rest), *bullets(problems)]
    resumes = [each.resume for each in entries if each.resume]
    pieces += [Paragraph("go on with  ", command) for command in resumes]
    return pieces


def _under_way_table(entries: Sequence[Entry]) -> Table:
    """Returns a row for each entry in progress, with a column for every fact known of any."""
    shown = [(each, _shown_facts(each)) for each in entries]
    names = dict.fromkeys(name for _, facts in shown for name in facts)

    def fact(name: str) -> Callable[[tuple[Entry, Mapping[str, str]]], str]:
        return lambda row: row[1].get(name, "")

    cells = {
        "run": lambda row: row[0].path,
        "state": lambda row: _state_text(row[0]),
        **{name: fact(name) for name in names},
    }
    return Table.of("Under way", shown, cells)


def _shown_facts(entry: Entry) -> dict[str, str]:
    """Returns the known facts of an entry: names and values as text, privacy rounded up."""
    limit = {} if entry.privacy is None else entry.privacy.limit
    facts = {
        "rounds committed": _of(entry.done, entry.count),
        "rounds trained": _of(entry.trained, entry.count),
        "time left": _if(duration, entry.seconds_left),
        "simulated": _if(_day, entry.simulated_seconds),
        "may come": _if("{:,}".format, entry.may_come),
        "eligible": _if("{:,}".format, entry.eligible),
        "train loss": _if("{:.4f}".format, entry.train_loss),
        **{name: _if("{:.4f}".format, value) for name, value in entry.evaluation.items()},
        **_spent(entry.privacy),
        **{f"task {name}": _task(task) for name, task in entry.tasks.items()},
        "budget": ", ".join(f"{name} {most:g}" for name, most in limit.items()),
        "shards": _if("{:,}".format, entry.shards),
        "trainers": _if("{:,}".format, entry.trainers),
        "running for": _if(duration, entry.wall_seconds),
    }
    # Unknown values are empty texts, which the table leaves out.
    return {name: text for name, text in facts.items() if text}


def _spent(privacy: Privacy | None) -> dict[str, str]:
    if privacy is None:
        return {}
    return {"rho at most": _if(fine, privacy.rho), "epsilon at most": _if(up, privacy.epsilon)}


def _others_table(entries: Sequence[Entry]) -> Table:
    """Returns a row for each entry that is not in progress."""
    cells = {
        "path": lambda each: each.path,
        "what": lambda each: each.kind,
        "state": lambda each: each.state,
        "rounds committed": lambda each: _of(each.done, each.count),
        "rounds trained": lambda each: _if("{:,}".format, each.trained),
        "written": lambda each: each.written.replace("T", " ").replace("+00:00", " UTC"),
    }
    return Table.of("Others", entries, cells)


def bound_text(privacy: Privacy) -> str:
    """Returns the bound on the privacy spent by a run in progress, with its reason."""
    if privacy.reason == NO_GUARANTEE:
        return f"{NO_GUARANTEE.capitalize()}."
    if privacy.rho is None and privacy.epsilon is None:
        return f"No bound of the privacy spent is known: {privacy.reason}."
    return (
        f"After {privacy.rounds:,} rounds the privacy spent is at most this, at delta "
        f"{given(privacy.delta)}. It is an upper bound: {privacy.reason}. The audit of the "
        "finished trace is exact."
    )


def _state_text(entry: Entry) -> str:
    """Returns the state; for a run elsewhere, with the age of its last report."""
    if entry.state != "elsewhere" or entry.told is None:
        return entry.state
    return f"elsewhere, {duration(entry.told)} ago"


def _task(task: TaskSoFar) -> str:
    spent = [f"{name} {text}" for name, text in _spent(task.privacy).items() if text]
    return ", ".join(filter(None, [_of(task.done, task.count), *spent]))


def _of(done: int | None, count: int | None) -> str:
    if done is None:
        return ""
    return f"{done:,}" if count is None else f"{done:,}/{count:,}"


def _if(text_of: Callable[[_Value], str], value: _Value | None) -> str:
    """Returns the text of a known value; empty for None."""
    return "" if value is None else text_of(value)


def _day(seconds: float) -> str:
    days, rest = divmod(seconds, 86_400)
    return f"day {days:.0f} {rest // 3600:02.0f}:{rest % 3600 // 60:02.0f}"
