"""`fedray answer`: answer the question of a finished trace."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path

from fedray.base.atomic import write_output
from fedray.base.errors import InputError
from fedray.commands.frame.output import print_files, print_result, write_shown


def answer(
    trace: Path,
    *,
    overrides: list[str] | None = None,
    vocabulary: Path | None = None,
    top: int = 12,
    rows: Path | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    trust_code: bool = False,
    ensure: Path | None = None,
    as_json: bool = False,
) -> None:
    """Answer the question of a trace, with its error, coverage and privacy.

    `fedray run` does the same after the simulation, and writes answer.json to the trace. Another
    question may be asked in place of the trace's own: --set analytics.question=... The exact
    answers are known in a simulation only.

    Example: fedray answer runs/words --set 'analytics.epsilon=0.5'

    Args:
        trace: directory of a run whose scenario has the table analytics
        vocabulary (FILE): file of the words that the first trust model found in the last window
        top (N): rows to show of an answer, the largest estimates first
        ensure (TOML): claim that the rules and the trace must ensure, or nothing is answered; its
            digest is recorded
        rows (FILE): CSV of all rows of all windows and trust models, with their intervals
    """
    from pyarrow.csv import write_csv

    from fedray.audit.claims import read_claim
    from fedray.runs.answers import answer as answer_of
    from fedray.runs.learning import scenario_of
    from fedray.trace.reader import Trace

    opened = Trace.open(trace)
    scenario = scenario_of(opened).with_overrides(*overrides) if overrides else None
    claim = None if ensure is None else read_claim(ensure)
    found = answer_of(opened, scenario=scenario, trust_code=trust_code, ensure=claim)
    # A question that was not the run's own is not recorded with it.
    written = {} if overrides else {"answer": str(found.write())}
    if top < 1:
        raise InputError.of("top", top, "must be at least 1", "12 rows are shown by default")
    found = replace(found, top=top)
    if rows is not None:
        csv = BytesIO()
        write_csv(found.to_arrow(), csv)
        write_output(rows, csv.getvalue(), f"rows {str(rows)!r}")
        written["rows"] = str(rows.absolute())
    if vocabulary is not None:
        written["vocabulary"] = str(found.write_vocabulary(vocabulary))
    written |= write_shown(found, page, figures)
    print_result(found, as_json, **written)
    if not as_json:
        print_files(written)
