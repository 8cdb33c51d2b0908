"""Mechanisms for the command line: options checked, results as values."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from fedray.base.document import Document, IfAny, InPlace
from fedray.base.errors import InputError, OptimizationFailed, demanded
from fedray.base.kept import cache_folder
from fedray.base.nearest import nearest_first
from fedray.mechanisms.accounting.sampled import PoissonSampling
from fedray.mechanisms.figures import Figures, calibrated_figures, mechanism_figures
from fedray.mechanisms.files import read_strategy, recorded_purpose, write_strategy
from fedray.mechanisms.loss import Objective, Purpose, check_objective
from fedray.mechanisms.named import PARAMETERS
from fedray.mechanisms.optimize.amplified import Amplification, AmplifiedBands, best_bands
from fedray.mechanisms.optimize.design import (
    FOLLOWING_KINDS,
    KINDS,
    NO_RECIPE,
    RECIPES,
    Kind,
    MechanismRequest,
    cached_mechanism,
    optimize_mechanism,
)
from fedray.mechanisms.optimize.objective import Progress
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.mechanisms.registry import STRATEGY_KINDS
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.workload import PREFIX, Workload
from fedray.runs.workloads import read_workload

_NO_DELTA = 1e-10
"""Delta of figures without noise, which have no epsilon."""
BEST = "best"
"""Kind of `fedray optimize` that chooses the number of bands under amplification by sampling."""
AMPLIFIED_KIND = "banded-toeplitz"
"""Kind of mechanism that it makes."""


@dataclass(frozen=True, slots=True)
class Found(Document):
    """A mechanism's figures, and how it was found."""

    figures: InPlace[Figures]
    tried: IfAny[tuple[AmplifiedBands, ...]] = None
    """Numbers of bands that were tried, in order; only of the kind best."""


def read_request(
    kind: str,
    rounds: int | None,
    min_sep: int | None,
    max_participations: int | None,
    buffers: int | None,
    bands: int | None,
    workload: str = "prefix",
    is_fixed_order: bool = False,
    loss: str = "rms",
) -> MechanismRequest:
    """Makes a request from the options of `fedray optimize`.

    Raises:
        InputError: the options contradict each other, or some are missing.
    """
    with _inputs():
        participation = _participation(rounds, min_sep, max_participations, is_fixed_order)
        return MechanismRequest(
            cast(Kind, kind),
            participation,
            buffers,
            bands,
            cast(Objective, loss),
            workload=read_workload(workload, participation.rounds),
        )


def read_amplification(
    kind: str,
    rounds: int | None,
    epsilon: float | None,
    delta: float | None,
    sampling: float | None,
    unused: Mapping[str, object],
) -> Amplification | None:
    """Makes the privacy of `fedray optimize best` from its options; None for another kind.

    Args:
        unused: options that do not apply to the kind best, by name.

    Raises:
        InputError: an option is missing, or does not apply.
    """
    with _inputs():
        if kind != BEST:
            unused = {"epsilon": epsilon, "delta": delta, "sampling": sampling}
        for name, value in unused.items():
            if value is not None:
                only = f"kind {BEST!r} chooses it" if kind == BEST else f"it is for kind {BEST!r}"
                raise InputError.of(
                    name, value, f"does not apply to {kind}", f"leave it out: {only}"
                )
        if kind != BEST:
            return None
        return Amplification(
            demanded("rounds", rounds, "must be given: the noise depends on it"),
            demanded("sampling", sampling, "must be given: the share of all devices in a round"),
            demanded("epsilon", epsilon, "must be given: the noise is the least for it"),
            _NO_DELTA if delta is None else delta,
        )


def find_mechanism(
    request: MechanismRequest,
    out: Path | None,
    on_progress: Progress,
    amplification: Amplification | None = None,
) -> Found:
    """Optimises or builds the requested mechanism, and writes it to a JSON file if `out` is given.

    With an amplification it is the one with the number of bands that needs the least noise.

    Raises:
        InputError: the request is impossible, or `out` cannot be written.
        OptimizationFailed: no valid mechanism was found.
    """
    with _inputs():
        # Checked before an optimisation of minutes.
        if out is not None:
            _check_out(out)
        make = partial(cached_mechanism, directory=cache_folder("designs"))
        if amplification is not None:
            best, tried = best_bands(amplification, request, make, on_progress)
            if out is not None:
                write_strategy(best.strategy, out, request.purpose)
            return Found(_of_request(best, request), tried)
        strategy = make(request, on_progress=on_progress)
        figures = mechanism_figures(
            strategy, request.participation, None, _NO_DELTA, workload=request.workload
        )
        # The file comes last, so that a mechanism whose figures fail leaves none.
        if out is not None:
            write_strategy(strategy, out, request.purpose)
        return Found(_of_request(figures, request))


def _of_request(figures: Figures, request: MechanismRequest) -> Figures:
    return replace(figures, objective=request.objective, purpose=request.purpose)


def evaluate_mechanisms(
    given: Sequence[Path],
    rounds: int | None,
    min_sep: int | None,
    max_participations: int | None,
    noise_multiplier: float | None,
    delta: float,
    probability: float | None = None,
    workload: str = "prefix",
    is_fixed_order: bool = False,
    *,
    has_random_rounds: bool = False,
    epsilon: float | None = None,
    rho: float | None = None,
    loss: str = "rms",
) -> dict[str, Figures]:
    """Returns all figures of mechanisms at one setting, by mechanism as given: files (JSON or .npy)
    or kinds in FOLLOWING_KINDS.

    Args:
        noise_multiplier: z of mu, rho and epsilon; None for figures without them, or for the least
            one of each mechanism for a target.
        probability: probability that a device is sampled in a round, for amplified figures.
        workload: workload of the losses, such as "momentum=0.9,decay=0.95" or "schedule=run.toml".
        is_fixed_order: whether rounds of a device are exactly min_sep apart.
        has_random_rounds: whether a sampled device rests for min_sep - 1 rounds after each of its
            rounds.
        epsilon: target for epsilon at delta.
        rho: target for rho, instead of epsilon.
        loss: "rms" or "max", by which mechanisms are compared, and for which kinds are made.

    Raises:
        InputError: the setting is impossible, or nothing is proven for it.
    """
    has_target = (epsilon, rho) != (None, None)
    check_objective(loss)
    objective = cast(Objective, loss)
    with _inputs():
        participation = _participation(rounds, min_sep, max_participations, is_fixed_order)
        sampling = _sampling(participation, probability, has_random_rounds)
        if has_target and noise_multiplier is not None:
            rule = "contradicts an epsilon or rho, which compute it"
            raise InputError.of("noise_multiplier", noise_multiplier, rule, "leave one out")
        if not has_target and sampling is not None and noise_multiplier is None:
            raise ValueError(
                f"sampling={probability:g} amplifies an epsilon, which needs a noise multiplier; "
                "give one"
            )
        matrix = read_workload(workload, participation.rounds)
        # All are read before any is evaluated, so that a wrong name costs no time.
        strategies = [_strategy(each, participation, matrix, objective=objective) for each in given]
        found = {}
        for file, name, strategy in zip(given, shown_names(given), strategies, strict=True):
            used = {"sampling": sampling, "workload": matrix}
            setting = strategy, participation
            try:
                if has_target:
                    figures = calibrated_figures(*setting, delta, epsilon=epsilon, rho=rho, **used)
                else:
                    figures = mechanism_figures(*setting, noise_multiplier, delta, **used)
                purpose = purpose_of(file, objective, matrix)
                found[str(file)] = replace(figures, objective=objective, purpose=purpose, name=name)
            except InputError as error:
                raise InputError(f"mechanism {str(file)!r}: {error}") from None
        return found


def mechanism_over(
    given: Path, rounds: int, participation: MinSep | None = None, loss: Objective = "rms"
) -> Strategy:
    """Returns the mechanism of a file (JSON or .npy), or of a kind, for the committed rounds of a
    trace: of any kind, optimised for a participation, or of one whose recipe searches nothing.

    Args:
        given: file, kind or name.
        rounds: committed rounds of the trace.
        participation: (n, b, k) that a kind is made for, or None.
        loss: loss that a kind is made for.

    Raises:
        InputError: it is neither, cannot be read, or has fewer rounds.
    """
    with _inputs():
        recipe = RECIPES.get(cast(Kind, str(given)))
        if recipe is not None and participation is not None and not given.is_file():
            request = MechanismRequest(cast(Kind, str(given)), participation, objective=loss)
            return cached_mechanism(request, cache_folder("designs"))
        if recipe is not None and recipe.searched == "bands" and not given.is_file():
            raise ValueError(
                f"mechanism {str(given)!r} is a kind whose bands follow from a setting, and a "
                f"trace has several; make one with `fedray optimize {given}`, and give its file"
            )
        # A trace without rounds is refused where it is used, which says why.
        n = max(rounds, 1)
        others = () if participation is None else ("none",)
        found = _strategy(given, MinSep(n, 1, n), PREFIX, *others)
        if found.most_rounds is not None and found.most_rounds < n:
            raise ValueError(
                f"mechanism {str(given)!r} is for {found.most_rounds:,} rounds, and the trace has "
                f"{n:,}; make a longer one"
            )
        return found


def shown_names(given: Sequence[str | Path]) -> list[str]:
    """Returns the names of mechanisms in tables and legends: of files, their stems. If two have the
    same stem, or one that is the name of a kind, all are named as given."""
    files = [Path(each).stem for each in given if Path(each).suffix]
    names = [Path(each).stem if Path(each).suffix else str(each) for each in given]
    is_clear = len({*names}) == len(names) and not {*files} & {*KINDS, *PARAMETERS}
    return names if is_clear else list(map(str, given))


def purpose_of(
    given: str | Path, objective: Objective, workload: Workload = PREFIX
) -> Purpose | None:
    """Returns the loss and the workload that a mechanism was made for: the ones in its file,
    of a name such as blt-400, or the given ones for a kind that is optimised. None if nothing
    is optimised, or if a file has no record."""
    recipe = RECIPES.get(cast(Kind, str(given)))
    is_kind = recipe is not None and recipe.searched != "nothing" and not Path(given).is_file()
    return Purpose(objective, str(workload)) if is_kind else recorded_purpose(given)


def _strategy(
    given: Path,
    at: MinSep,
    workload: Workload = PREFIX,
    *others: str,
    objective: Objective = "rms",
) -> Strategy:
    """Returns the mechanism of a file, or of a kind that a setting determines, beside `others`."""
    kind = str(given)
    # A path of one word without a suffix may be meant for a kind; files of `--out` have a suffix.
    if given.is_file() or given.suffix or given.name != kind:
        return read_strategy(given)
    if kind in FOLLOWING_KINDS:
        request = MechanismRequest(cast(Kind, kind), at, objective=objective, workload=workload)
        return optimize_mechanism(request)
    if kind in KINDS:
        raise ValueError(
            f"mechanism {kind!r} is a kind that is optimised for a setting; make one with "
            f"`fedray optimize {kind}`, and give the file that it writes"
        )
    kinds = (*KINDS, *others)
    nearest = nearest_first(kind, kinds)[0]
    if kind in STRATEGY_KINDS:
        remedy = f"give a file with them, or a kind such as {nearest!r}"
        raise ValueError(f"mechanism {kind!r} {NO_RECIPE}; {remedy}")
    raise ValueError(
        f"mechanism {kind!r} is neither a file nor one of the kinds {', '.join(kinds)}; the "
        f"nearest is {nearest!r}"
    )


def _sampling(
    participation: MinSep, probability: float | None, has_random_rounds: bool
) -> PoissonSampling | None:
    if probability is None:
        if has_random_rounds:
            rule, remedy = "is about sampled devices", "give the sampling probability too"
            raise InputError.of("random_rounds", True, rule, remedy)
        return None
    if has_random_rounds and participation.is_fixed_order:
        raise InputError.of(
            "random_rounds", True, "contradicts a fixed order", "leave one of the two out"
        )
    min_sep = participation.min_sep if has_random_rounds else 1
    drawn, most = most_of_device(participation.rounds, min_sep), participation.max_participations
    if has_random_rounds and most < drawn:
        rule = f"is less than random rounds may draw a device, {drawn:,}: nothing is proven for it"
        raise InputError.of("max_participations", most, rule, f"give {drawn}")
    return PoissonSampling(participation.rounds, probability, min_sep=min_sep)


def _participation(
    rounds: int | None, min_sep: int | None, max_participations: int | None, is_fixed_order: bool
) -> MinSep:
    rule = "must be given: sensitivity and loss depend on it"
    return MinSep(
        demanded("rounds", rounds, rule),
        demanded("min_sep", min_sep, rule),
        demanded("max_participations", max_participations, rule),
        is_fixed_order,
    )


def _check_out(out: Path) -> None:
    if out.suffix == ".npy":
        raise ValueError(
            f"out={str(out)!r} names the JSON file; a matrix is written beside it as .npy, so "
            "choose another suffix"
        )
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(
            f"out={str(out)!r} cannot be written; name a file in a directory that exists"
        )


@contextmanager
def _inputs() -> Iterator[None]:
    """Converts errors of the mathematics: a refusal is the caller's mistake here."""
    try:
        yield
    except ValueError as error:
        raise InputError.caused_by(error) from None
    except ArithmeticError as error:
        # A failed optimisation is not the caller's mistake.
        raise OptimizationFailed(str(error)) from None
