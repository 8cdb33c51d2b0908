"""The trace of a sampler, for `fedray audit --sampler`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from fedray.base.errors import InputError, demanded
from fedray.commands.progress import progress_line


def trace_of_sampler(
    trace: Path | None,
    sampler: str | None,
    assume: Path | None,
    rounds: int | None,
    claim: Path | None,
) -> tuple[Path, Path | None, TemporaryDirectory | None]:
    """Returns the trace to audit, the claim to check, and the folder of a trace that was made.

    Args:
        trace: trace of the command; without a sampler it is returned as it is.
        sampler: sampler to run, as module:object.
        assume: claim about the sampler.
        rounds: number of rounds; None for that of the claim.
        claim: claim about the trace.

    Raises:
        InputError: options contradict each other, or the sampler fails.
    """
    if sampler is None:
        if assume is not None or rounds is not None:
            raise InputError("--assume and --rounds are about a sampler; give --sampler too")
        if trace is None:
            raise InputError("TRACE is missing; name a trace, or give --sampler and --assume")
        return trace, claim, None
    if trace is not None or claim is not None:
        raise InputError("--sampler makes its own trace; leave out TRACE, and --claim for --assume")
    from fedray.audit.claims import read_claim
    from fedray.imports.sampler import record_sampler

    claimed = read_claim(demanded("assume", assume, "must be given with --sampler"))
    rule = "must be given, because the claim has no `rounds`"
    count = demanded("rounds", claimed.rounds if rounds is None else rounds, rule)
    if count < 1:
        raise InputError.of("rounds", count, "must be at least 1")
    folder = TemporaryDirectory(prefix="fedray-sampler-")
    with progress_line("sampling"):
        made = record_sampler(sampler, count, Path(folder.name))
    return made.path, assume, folder
