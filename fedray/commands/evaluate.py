"""`fedray evaluate`: evaluate a trained model on the population's devices."""

from pathlib import Path

from fedray.commands.output import print_files, print_result, write_shown
from fedray.commands.progress import progress_line


def evaluate(
    trained: Path,
    *,
    trace: Path | None = None,
    sample: int = 512,
    examples: int = 64,
    page: Path | None = None,
    figures: Path | None = None,
    trust_code: bool = False,
    as_json: bool = False,
) -> None:
    """Evaluate a trained model on the population's devices.

    Every device counts once. Groups are devices that took part equally often, and devices of one
    time zone. The page is that of the trained run with these figures.

    Args:
        trained: directory of `fedray train`, or a trace with a trained run
        trace (TRACE): trace of the training; default: where it was when it was trained
        sample (N): devices drawn of the population, and of each group
        examples (M): most examples of each device
    """
    from fedray.studies.on_devices import evaluate_on_devices

    with progress_line("evaluating"):
        result = evaluate_on_devices(trained, trace, sample, examples, trust_code=trust_code)
    # Files come before the printing, because the JSON names them.
    written = write_shown(result, page, figures)
    print_result(result, as_json, **written)
    if not as_json:
        print_files(written)
