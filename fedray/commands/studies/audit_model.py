"""`fedray audit-model`: audit a trained model for traces of its devices."""

from pathlib import Path

from fedray.commands.frame.output import print_files, print_result, write_shown
from fedray.commands.frame.progress import progress_line


def audit_model(
    trained: Path,
    *,
    trace: Path | None = None,
    sample: int = 512,
    page: Path | None = None,
    figures: Path | None = None,
    trust_code: bool = False,
    as_json: bool = False,
) -> None:
    """Audit a trained model for traces of its devices and of planted phrases.

    Exposure of phrases, inference of who took part, and lower bounds of epsilon from the phrases
    (`[[training.planted]]`), beside the upper bound of the trace.

    Args:
        trained: directory of `fedray train`, or a trace with a trained run
        trace (TRACE): trace of the training; default: where it was when it was trained
        sample (N): most devices that trained, and that never took part
    """
    from fedray.studies.model_audit import audit_model

    with progress_line("auditing the model"):
        result = audit_model(trained, trace, sample, trust_code=trust_code)
    # Files come before the printing, because the JSON names them.
    written = write_shown(result, page, figures)
    print_result(result, as_json, **written)
    if not as_json:
        print_files(written)
