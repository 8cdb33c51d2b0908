"""`fedray fit-log`: fit an availability model to a log."""

import shlex
import sys
from pathlib import Path

import typer

from fedray.base.errors import InputError
from fedray.commands.frame.log_options import columns_of, time_form
from fedray.commands.frame.output import print_result, write_shown
from fedray.commands.frame.progress import progress_line

_ROLES = ("device", "start", "end", "time", "state", "zone")
UNKNOWN = "unknown"
"""Value of `--utc-offset` that makes the offset a fitted parameter."""


def fit_log(
    log: Path,
    *,
    column: list[str] | None = None,
    timer: float | None = None,
    step_minutes: float | None = None,
    time_format: list[str] | None = None,
    delimiter: str | None = None,
    utc_offset: str = "0",
    seed: int = 1,
    overrides: list[str] | None = None,
    out: Path | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Fit the habits of devices, or another availability model, to a log, with 95 % intervals.

    The log has intervals of eligibility (columns device, start, end), check-ins (device, time) or,
    with --timer, participations (device, time). Numbers that are not Unix times count from the
    midnight before a Monday. With a column of states and --step-minutes, devices are unknown where
    they have no row. --set availability.model=poisson or conditions fits another model. The
    parameters are found by simulated moments.

    Habits are those of local time. For devices of several time zones, --column zone=NAME names a
    column of local time minus the log's clock: hours, minutes or text such as +05:30.

    Example: fedray fit-log log.csv --column start=since --column end=until --out habits.toml

    Args:
        column (ROLE=NAME): column of the log, such as device=client_id; repeatable
        timer (HOURS): timer of the devices; the log is then one of participations
        step_minutes (MINUTES): time between two looks at a device, for a log with states
        seed (N): seed of the simulated devices
        overrides (KEY=VALUE): key of the table availability to set; repeatable
        out (FILE): TOML file of the fitted tables, for a scenario
        page (FILE): HTML page of measured and simulated habits
    Form of the log:
        utc_offset (HOURS|unknown): local time of devices minus the log's clock; unknown: fitted
        delimiter (C): character between columns of CSV, or tab; default: a comma
    """
    from fedray.base.atomic import write_output
    from fedray.imports.log_records import RecordColumns
    from fedray.report.page import write_page
    from fedray.studies.habits.fit import fit_habits
    from fedray.studies.habits.page import habit_fit_page
    from fedray.studies.habits.parameters import base_table
    from fedray.studies.habits.read import read_observed_log

    named = {role: names[0] for role, names in columns_of(column, _ROLES).items() if names}
    form = {"delimiter": delimiter, **time_form(time_format)}
    columns = RecordColumns(**named, **form)
    # Mistakes in the options are reported before the log is read, which may take long.
    base = base_table(overrides or [])
    is_fitted = utc_offset == UNKNOWN
    offset = 0.0 if is_fitted else _hours(utc_offset)
    with progress_line("fitting") as show:
        show("reading the log")
        kept = {"timer_hours": timer, "step_minutes": step_minutes}
        observed = read_observed_log(log, columns, utc_offset_hours=offset, **kept)
        fit = fit_habits(observed, base, seed=seed, fits_offset=is_fitted, on_progress=show)
    toml = fit.to_toml()
    if out is not None:
        write_output(out, toml.encode(), f"out={str(out)!r}")
    # The page says which command made it, so that it can be made again.
    command = shlex.join(["fedray", *sys.argv[1:]])
    if page is not None:
        write_page(habit_fit_page(fit, command), page)
    write_shown(fit, None, figures)
    print_result(fit, as_json, times=observed.form)
    if not as_json:
        typer.echo(toml)


def _hours(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        rule = "is neither a number of hours nor unknown"
        remedy = "give local time minus the log's clock"
        raise InputError.of("utc_offset", text, rule, remedy) from None
