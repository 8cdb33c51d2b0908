"""`fedray sweep`: sweep settings, and compare mechanisms in each."""

import contextlib
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fedray.base.atomic import write_directory
from fedray.base.document import Document
from fedray.base.errors import InputError
from fedray.base.storage import Bucket, is_of_bucket
from fedray.commands.frame.output import (
    print_files,
    print_json,
    print_line,
    print_result,
    refuse_existing,
    write_shown,
)
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line
from fedray.commands.studies.compare import print_comparison


@dataclass(frozen=True, slots=True)
class ShippedSweep:
    """A sweep that ships with fedray."""

    name: str
    """Argument of `fedray sweep`."""
    description: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True)
class ShippedSweeps(Document):
    """All sweeps that ship with fedray."""

    sweeps: list[ShippedSweep]
    """The sweeps that ship with fedray."""


def _names(begun: str) -> list[str]:
    from fedray.studies.sweep.sweep import shipped_sweeps

    return [name for name in shipped_sweeps() if name.startswith(begun)]


def sweep(
    sweep: Annotated[str | None, _names] = None,
    *,
    loss: str | None = None,
    out: Path | None = None,
    figures: Path | None = None,
    place: list[str] | None = None,
    trust_code: bool = False,
    as_json: bool = False,
) -> None:
    """Sweep settings or simulated runs, and compare how well mechanisms do in each.

    A sweep with a trace trains a model in every cell, and keeps the models in --out. An interrupted
    sweep continues when it is run again. Without SWEEP, list the sweeps that ship.

    Args:
        sweep: sweep that ships, or a TOML file with the keys of `fedray schema sweep`
        loss (max|rms): loss that mechanisms are made for and ranked by; default: the file's, or
            that of its y
        out (DIR|URI): new directory for results.parquet, results.json and report.html, or its URI
            in a bucket, which keeps finished cells too
    """
    from fedray.studies.sweep.sweep import find_sweep

    if sweep is None:
        _print_shipped(as_json)
        return
    value, scenario = find_sweep(sweep)
    value = value if loss is None else value.with_loss(loss)
    placement = placement_of(place)
    run: Any
    uri = str(out) if out is not None and is_of_bucket(out) else None
    bucket = None if uri is None else Bucket(uri)
    if value.trace is not None:
        from fedray.studies.grid import run_grid

        if out is None:
            raise InputError("--out is missing; name the directory that keeps the trained models")
        run = partial(run_grid, value, out, placement, trust_code=trust_code)
    else:
        # An output that exists is refused now, because the sweep takes long.
        if bucket is None:
            refuse_existing(out)
        elif "/report.html" in bucket.files("/"):
            raise InputError(f"output {bucket.name} exists already; name a new one")
        # Modules that load slowly are imported once the request is known to be possible.
        from fedray.studies.sweep.run import run_sweep

        run = partial(run_sweep, value, scenario, placement, bucket=uri)
    with progress_line(f"sweeping {value.name}") as show, contextlib.redirect_stdout(sys.stderr):
        result = run(on_progress=show)
    if value.trace is None:
        # Warnings go to stderr, so that stdout has only JSON.
        for warning in result.warnings if as_json else ():
            print_line(f"fedray: warning: {warning}", err=True)
        if out is not None:
            from fedray.studies.sweep.run import result_files

            files = result_files(result, result.page())
            if bucket is None:
                write_directory(out, files)
            else:
                for name, content in files.items():
                    bucket.write(f"/{name}", content)
        written = write_shown(result, None, figures)
        print_result(result, as_json)
        if not as_json:
            print_files(written)
    else:
        print_comparison(result, None, figures, as_json)
    if out is not None and not as_json:
        where = out if bucket is None else bucket.name
        print_line(f"report  {where}/report.html", f"table   {where}/results.parquet")


def _print_shipped(as_json: bool) -> None:
    from fedray.studies.sweep.sweep import Sweep, shipped_sweeps

    found = ShippedSweeps(
        [
            ShippedSweep(name, Sweep.from_toml(path)[0].description)
            for name, path in shipped_sweeps().items()
        ]
    )
    if as_json:
        print_json(found.to_json())
        return
    for each in found.sweeps:
        print_line(f"{each.name}  {each.description}")
