"""`fedray calibrate`: the least noise multiplier for a recorded trace."""

from pathlib import Path

from fedray.commands.frame.output import print_json, print_pieces
from fedray.commands.frame.progress import progress_line


def calibrate(
    trace: Path,
    *,
    claim: Path | None = None,
    mechanism: Path | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
    as_json: bool = False,
) -> None:
    """Compute the least noise multiplier with which a trace has at most an epsilon or rho.

    There are two: one for the participation that the run's rules enforce, on which a guarantee may
    rest, and one for the observed participation. With a claim there is one for its limits too, and
    its mechanism, delta, and epsilon or rho are used. `fedray mechanism --epsilon` does the same
    for a given setting.

    Args:
        claim (TOML): claim whose limits should give its epsilon and rho
        mechanism (FILE|KIND): mechanism instead of the run's; blt-400, tree or another
            kind of `fedray mechanism` without bands
        epsilon (E): largest epsilon allowed
        rho (R): largest rho (zCDP) allowed, instead of epsilon
    """
    from fedray.audit.calibration import calibrate_trace
    from fedray.audit.claims import read_claim
    from fedray.report.terminal import calibration_text
    from fedray.runs.design import mechanism_over
    from fedray.trace.imported import open_trace

    opened = open_trace(trace)
    # A kind such as tree is built for the number of rounds of this trace.
    strategy = None if mechanism is None else mechanism_over(mechanism, opened.committed_rounds)
    claimed = None if claim is None else read_claim(claim)
    with progress_line("auditing"):
        found = calibrate_trace(
            opened, epsilon=epsilon, rho=rho, delta=delta, mechanism=strategy, claim=claimed
        )
    if as_json:
        print_json(found.to_json())
    else:
        print_pieces(calibration_text(found), found.of)
