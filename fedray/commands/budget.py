"""`fedray budget`: the privacy that devices, or persons, spent over runs."""

from datetime import date
from pathlib import Path
from typing import Any

import typer

from fedray.base.atomic import write_output
from fedray.base.errors import InputError, demanded
from fedray.base.storage import fetched
from fedray.commands.frame.output import print_result
from fedray.commands.frame.progress import progress_line


def day_of(text: str | None) -> date | None:
    """Returns the day of `--start`; None if it was not given. Raises InputError."""
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise InputError.of("start", text, "must be a day, such as 2026-10-01") from None


def say_if_same(ledger: Any, before: str = "") -> None:
    """Says on stderr if a charge, before which the head was `before`, charged nothing."""
    if ledger.entries[-1]["kind"] == "cancelled" or ledger.head == before:
        typer.echo(
            "fedray: the ledger has this release already, so nothing was charged; another release "
            "has another training.seed, and that of a log another name (--release)",
            err=True,
        )


def budget(
    ledger: Path,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    period: str = "quarter",
    unit: str = "device",
    observer: str = "models",
    ensure: Path | None = None,
    add: Path | None = None,
    claim: Path | None = None,
    release: str | None = None,
    start: str | None = None,
    cancel: int | None = None,
    head: str | None = None,
    statement: Path | None = None,
    as_json: bool = False,
) -> None:
    """Show a ledger of the privacy that devices, or persons, spent over runs, or charge a run.

    With --epsilon a new ledger is made. `fedray run --ledger` reserves and charges by itself. The
    exit code is 1 if a window is beyond the budget.

    Args:
        ledger (LEDGER): directory of the ledger
        epsilon (E): budget of a unit in a window, for a new ledger
        delta (D): delta of the budget
        period (day|week|month|quarter|year): length of a window, for a new ledger
        unit (device|person): unit of the budget, for a new ledger
        observer (models|operator): against whom it is spent, for a new ledger: whoever gets the
            models, or the operator of the server
        ensure (TOML): claim that every run must ensure, for a new ledger
        add (TRACE|URI): run, training or log to charge; a second time changes nothing
        claim (TOML): mechanism and noise of a log, as a claim
        release (NAME): name of a log's release; that of a charge corrects the charge
        start (DAY): day on which the run started (UTC), if no reservation or log says it; a log
            without times counts in the window of that day
        cancel (LINE): reservation of a run that released nothing
        head (DIGEST): head at an earlier time, which the ledger must continue
        statement (FILE): privacy statement over all runs to publish, as Markdown
    """
    from fedray.audit.claims import read_claim
    from fedray.audit.ledger import Ledger
    from fedray.runs.budgeted import charge_run

    if add is None:
        for name, value in (("claim", claim), ("release", release), ("start", start)):
            if value is not None:
                rule = "is about a charge, but none is made"
                raise InputError.of(name, str(value), rule, "give the log or run by `add=TRACE`")
    for name, value in (("delta", delta), ("ensure", ensure)):
        if epsilon is None and value is not None:
            rule = "is for a new ledger, whose epsilon is given too"
            shown = str(value) if isinstance(value, Path) else value
            raise InputError.of(name, shown, rule, "leave it out")
    if epsilon is not None:
        delta = demanded("delta", delta, "must be given")
        claimed = None if ensure is None else read_claim(ensure)
        found = Ledger.create(ledger, epsilon, delta, period, unit, observer, claimed)
    else:
        found = Ledger.open(ledger, head)
    if add is not None:
        with progress_line("auditing"):
            claimed = None if claim is None else read_claim(claim)
            head, found = (
                found.head,
                charge_run(ledger, fetched(add), day_of(start), release or "", claimed),
            )
        say_if_same(found, head)
    if cancel is not None:
        found = found.cancel(cancel)
    if statement is not None:
        write_output(statement, found.statement().encode(), f"statement {str(statement)!r}")
    print_result(found, as_json)
    if not all(each.is_within for each in found.windows):
        typer.echo("fedray: the budget of a window is exceeded", err=True)
        raise typer.Exit(1)
