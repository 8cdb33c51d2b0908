"""Releases of an audit, as events that any accountant can read, and their file.

The file lets other tools check the figures. It has each event with the figures of fedray's
accountants, the equivalent event of dp_accounting, and dp_accounting's figures.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedray.audit.mechanism_audit import MechanismAudit
from fedray.base.atomic import write_beside
from fedray.base.errors import InputError
from fedray.base.parsing import read_document
from fedray.base.rounding import given, up
from fedray.mechanisms.accounting.accountants import epsilon_of, every_epsilon_of
from fedray.mechanisms.accounting.events import Event, EventRefused, read_event
from fedray.mechanisms.accounting.limits import check_delta
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.files import write_json
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import MatrixFile

FORMAT, VERSION = "fedray-events", 1


@dataclass(frozen=True, slots=True)
class ReleasedEvent:
    """Event behind one guarantee of an audit."""

    mechanism: str
    """Kind of the mechanism."""
    guarantee: str
    """"observed", "observed limits", "enforced" or "claimed"."""
    scope: str
    """Subject of the figures."""
    event: Event
    """The release."""
    delta: float
    """delta of epsilon."""

    def __repr__(self) -> str:
        spent = epsilon_of(self.event, self.delta)
        return (
            f"<ReleasedEvent {self.event.kind} of {self.mechanism}, {self.guarantee}: epsilon "
            f"{up(spent.epsilon)} at {given(self.delta)}>"
        )

    @property
    def rho(self) -> float | None:
        """rho of zCDP; None if none is proven for the event."""
        try:
            return rho_of(self.event)
        except EventRefused:
            return None

    @property
    def epsilon(self) -> float:
        """epsilon at delta, by the first accountant that takes the event."""
        return epsilon_of(self.event, self.delta).epsilon

    def to_json(self) -> dict[str, Any]:
        """The event, with the figures of every accountant and of dp_accounting."""
        # This loads dp_accounting, which is needed only here.
        from fedray.mechanisms.accounting.peer import peer_figures

        return {
            "mechanism": self.mechanism,
            "guarantee": self.guarantee,
            "scope": self.scope,
            "delta": self.delta,
            "event": self.event.to_json(),
            "rho": self.rho,
            "epsilon": self.epsilon,
            "accountants": every_epsilon_of(self.event, self.delta),
            "dp_accounting": asdict(peer_figures(self.event, self.delta)),
        }


def events_of(mechanisms: Sequence[MechanismAudit]) -> tuple[ReleasedEvent, ...]:
    """Returns the releases of every mechanism under each of its guarantees; empty without noise."""
    named = [(each, name, guarantee) for each in mechanisms for name, guarantee in each.named]
    named += [
        (each, f"{guarantee.name}, per person", guarantee)
        for each in mechanisms
        if each.person is not None
        for guarantee in each.person.guarantees
    ]
    return tuple(
        ReleasedEvent(mechanism.name, name, each.scope, each.event, each.delta)
        for mechanism, name, each in named
        if each.event is not None
    )


def check_has_events(events: Sequence[ReleasedEvent], no_guarantee: str | None, path: Path) -> None:
    """Raises InputError if an audit of the trace at `path` has no events, with the reason."""
    if no_guarantee:
        raise InputError(f"trace {str(path)!r}: {no_guarantee}; name a mechanism")
    if not events:
        raise InputError(
            f"trace {str(path)!r}: no mechanism and noise multiplier are known, so there "
            "are no events; give both, or a claim"
        )


def write_events(
    events: Sequence[ReleasedEvent], strategies: Sequence[Strategy], digest: str, file: str | Path
) -> Path:
    """Writes events as JSON, with the matrices of their strategies beside them, named by content.

    Args:
        events: events of an audit.
        strategies: their strategies.
        digest: digest of the trace.
        file: the JSON file.

    Returns:
        The file's path.

    Raises:
        InputError: the file cannot be written.
    """
    path = Path(file)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "trace_digest": digest,
        "events": [each.to_json() for each in events],
    }
    what = f"events {str(path)!r}"
    for strategy in strategies:
        if isinstance(strategy, MatrixFile):
            name = strategy.content_name
            write_beside(path, lambda _, name=name: name, strategy.content, what)
    write_json(document, path, what)
    return path


def read_events(file: str | Path) -> tuple[ReleasedEvent, ...]:
    """Returns the events of a file that `fedray audit --events` wrote; their figures are computed
    again.

    Args:
        file: path of a JSON file; matrices of strategies are searched for in its directory.

    Raises:
        InputError: the file has another form, or the matrix of a strategy is missing beside it.
    """
    path = Path(file)
    document = read_document(path, "events", "JSON")
    is_ours = isinstance(document, dict) and document.get("format") == FORMAT
    if not is_ours or document.get("version") != VERSION:
        raise InputError(
            f"events {str(path)!r} has no format = {FORMAT!r} and version={VERSION}; give a "
            "file that `Audit.write_events` wrote"
        )
    try:
        # Matrices are named by their content, and lie beside the file.
        return tuple(_event_of(each, path.parent) for each in document["events"])
    except InputError as error:
        raise InputError(f"events {str(path)!r}: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"events {str(path)!r} lacks keys that `Audit.write_events` writes, or has them in "
            "another form; write it again"
        ) from None


def _event_of(document: dict[str, Any], directory: Path) -> ReleasedEvent:
    # Epsilon is computed on demand, which is too late to refuse a delta.
    check_delta(float(document["delta"]))
    return ReleasedEvent(
        mechanism=str(document["mechanism"]),
        guarantee=str(document["guarantee"]),
        scope=str(document["scope"]),
        event=read_event(document["event"], directory),
        delta=float(document["delta"]),
    )
