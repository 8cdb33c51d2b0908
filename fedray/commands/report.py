"""`fedray report`: write the page of a trace or of a trained run."""

from pathlib import Path

from fedray.base.errors import InputError
from fedray.base.storage import fetched, is_of_bucket
from fedray.commands.frame.auditing import open_checked, open_tasks
from fedray.commands.frame.output import TITLE, print_line, write_shown
from fedray.commands.frame.progress import progress_line


def report(
    directory: Path,
    *,
    out: Path | None = None,
    figures: Path | None = None,
) -> None:
    """Write the page of a trace, of a trained run, or of a run of several tasks.

    The page of a trace is that of `fedray audit --page`, which also takes a claim or another
    mechanism.

    Args:
        directory (DIR|URI): directory of `fedray run`, `fedray import` or `fedray train`
        out (FILE): page to write; default: report.html in DIR
    """
    from fedray.audit.auditing import audit_trace
    from fedray.report.page import write_own_page
    from fedray.trace.learned_from import is_trained_run
    from fedray.trace.schema import REPORT_FILE
    from fedray.trace.several_tasks import is_of_tasks
    from fedray.trace.trained import TrainedRun

    if out is None and is_of_bucket(directory):
        raise InputError("the page of a run in a bucket needs a file of its own; give --out FILE")
    directory = fetched(directory)
    with progress_line("writing the page"):
        if is_trained_run(directory):
            result = open_checked(directory, None, TrainedRun.open)
        elif is_of_tasks(directory):
            result = open_tasks(directory, None, None)[1]
        else:
            result = audit_trace(open_checked(directory, None))
        # The page lies where a browser finds it beside the files that it shows.
        file = directory / REPORT_FILE
        own = [] if out else [write_own_page(result.page(), file, TITLE.get())]
        written = write_shown(result, out, figures)
    for path in (*own, *written.values()):
        print_line(str(path))
