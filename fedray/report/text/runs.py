"""The runs under a directory in the terminal: what `fedray status` prints."""

from collections.abc import Callable, Mapping
from typing import Any

from fedray.base.rounding import given, up
from fedray.report.progress import duration
from fedray.report.text import Paragraph, Piece, TextTable

Document = Mapping[str, Any]
_NOT_KNOWN: Document = {"rho": None, "epsilon": None, "limit": {}}
_WALL_TIME = {"finished": "took", "interrupted": "ran for"}
"""What the wall time of an entry is called, by its state; of others it goes on."""


def status_text(listing: Document) -> list[Piece]:
    """What is under way, what was interrupted, and the rest.

    Args:
        listing: as `Listing.to_json` gives it.
    """
    entries = listing["entries"]
    if not entries:
        return [Paragraph("", f"There are no runs under {listing['directory']}.")]
    pieces: list[Piece] = []
    # What another machine wrote last may still be running there, as far as is known here.
    under_way = [each for each in entries if each["state"] in ("running", "elsewhere")]
    if under_way:
        pieces.append(TextTable("Under way", under_way_rows(under_way)))
        pieces += [
            Paragraph("  * ", f"{_printable(each['path'])}: {bound_text(each['privacy'])}")
            for each in under_way
            if each["privacy"] is not None
        ]
        pieces += [
            Paragraph("  * ", f"{each['path']}: {each['note']}")
            for each in under_way
            if each["note"]
        ]
    rest = [each for each in entries if each not in under_way]
    if rest:
        pieces.append(TextTable("Others", other_rows(rest)))
    resumes = [each["resume"] for each in entries if each["resume"]]
    pieces += [Paragraph("go on with  ", _printable(command)) for command in resumes]
    if listing["has_more"]:
        pieces.append(
            Paragraph("", "There are more, which are not listed; name a directory below.")
        )
    return pieces


def shown_listing(listing: Document) -> dict[str, Any]:
    """The listing with what is shown of each entry as text: its facts, and its state.

    Args:
        listing: as `Listing.to_json` gives it.
    """
    entries = [
        {
            **each,
            "facts": shown_facts(each),
            "state_text": state_text(each),
            "bound_text": "" if each["privacy"] is None else bound_text(each["privacy"]),
        }
        for each in listing["entries"]
    ]
    return {**listing, "entries": entries}


def under_way_rows(entries: list[Document]) -> list[list[str]]:
    """A heading, then a row for each entry that is under way."""
    shown = [shown_facts(each) for each in entries]
    # All facts that are known of one of them, in the order in which they are told.
    names = list(dict.fromkeys(name for facts in shown for name in facts))
    rows = [
        [_printable(each["path"]), state_text(each), *(facts.get(name, "") for name in names)]
        for each, facts in zip(entries, shown, strict=True)
    ]
    return [["run", "state", *names], *rows]


def shown_facts(entry: Document) -> dict[str, str]:
    """What is known of an entry: names and values as text, privacy rounded up."""
    privacy = entry["privacy"] or _NOT_KNOWN
    limit = privacy["limit"]
    facts = {
        "round": _of(entry["done"], entry["count"]),
        "trained": _of(entry["trained"], entry["count"]),
        "time left": _if(duration, entry["seconds_left"]),
        "simulated": _if(_day, entry["simulated_seconds"]),
        "may come": _if("{:,}".format, entry["may_come"]),
        "eligible": _if("{:,}".format, entry["eligible"]),
        "train loss": _if("{:.4f}".format, entry["train_loss"]),
        **{name: _if("{:.4f}".format, value) for name, value in entry["evaluation"].items()},
        "rho at most": _if(lambda rho: up(rho, 6), privacy["rho"]),
        "epsilon at most": _if(up, privacy["epsilon"]),
        **{f"task {name}": _task(task) for name, task in entry["tasks"].items()},
        "budget": ", ".join(f"{name} {most:g}" for name, most in limit.items()),
        "shards": _if("{:,}".format, entry["shards"]),
        "trainers": _if("{:,}".format, entry["trainers"]),
        _WALL_TIME.get(entry["state"], "running for"): _if(duration, entry["wall_seconds"]),
    }
    # What is not known has an empty text, and no place in the table.
    return {name: text for name, text in facts.items() if text}


def other_rows(entries: list[Document]) -> list[list[str]]:
    """A heading, then a row for each entry that is not under way."""
    rows = [["path", "what", "state", "round", "trained", "written"]]
    for each in entries:
        rows.append(
            [
                _printable(each["path"]),
                each["kind"],
                each["state"],
                _of(each["done"], each["count"]),
                _if("{:,}".format, each["trained"]),
                each["written"],
            ]
        )
    return rows


def bound_text(privacy: Document) -> str:
    """What the bound of a run that is under way is, and what it follows from."""
    if privacy["rho"] is None and privacy["epsilon"] is None:
        return f"No bound of the privacy spent is known: {privacy['reason']}."
    return (
        f"After {privacy['rounds']:,} rounds the privacy spent is at most this, at delta "
        f"{given(privacy['delta'])}. It is an upper bound: {privacy['reason']}. The audit of the "
        "finished trace is exact."
    )


def state_text(entry: Document) -> str:
    """The state, with the age of the last word where nothing else is known."""
    if entry["state"] != "elsewhere" or entry["told"] is None:
        return entry["state"]
    return f"elsewhere, {duration(entry['told'])} ago"


def _task(task: Document) -> str:
    privacy = task["privacy"] or _NOT_KNOWN
    parts = [
        _of(task["done"], task["count"]),
        _if(lambda rho: f"rho at most {up(rho, 6)}", privacy["rho"]),
        _if(lambda epsilon: f"epsilon at most {up(epsilon)}", privacy["epsilon"]),
    ]
    return ", ".join(part for part in parts if part)


def _of(done: int | None, count: int | None) -> str:
    if done is None:
        return ""
    return f"{done:,}" if count is None else f"{done:,}/{count:,}"


def _printable(name: str) -> str:
    """A name of a file without what a terminal would obey."""
    return name if name.isprintable() else ascii(name)


def _if(text_of: Callable[[Any], str], value: Any) -> str:
    """The text of what is known."""
    return "" if value is None else text_of(value)


def _day(seconds: float) -> str:
    days, rest = divmod(seconds, 86_400)
    return f"day {days:.0f} {rest // 3600:02.0f}:{rest % 3600 // 60:02.0f}"
