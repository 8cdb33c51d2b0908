"""Entry point for every kind of mechanism: builds it, optimises it for a participation, or reads it
from the cache.

The cache (`$XDG_CACHE_HOME/fedray/designs`, else `~/.cache/fedray/designs`) is keyed by a digest of
all inputs, the code and its libraries. An entry has its key and a digest of the mechanism; an entry
that does not match or is not a valid mechanism is recomputed.
"""

import hashlib
import importlib.metadata
import json
import os
import warnings
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from fedray.base.errors import InputError
from fedray.base.kept import keep, read_kept
from fedray.mechanisms.files import document_of, strategy_of
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.objective import Objective, Progress, Target
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BISR, BandFHU, Identity, Tree, TreeFull
from fedray.mechanisms.strategy import Strategy

Kind = Literal[
    "blt", "banded", "banded-toeplitz", "band-fhu", "bisr", "dense", "tree", "tree-full", "identity"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
FOLLOWING_KINDS: tuple[Kind, ...] = ("tree", "tree-full", "identity", "band-fhu", "bisr")
"""Kinds with a closed form for every setting."""
DEFAULT_BUFFERS = 4


@dataclass(frozen=True, slots=True)
class MechanismRequest:
    """A kind of mechanism and its setting. None means the default of the kind."""

    kind: Kind
    """One of KINDS."""
    participation: MinSep
    """(n, b, k) to optimise for."""
    buffers: int | None = None
    """Number of buffers of a BLT; default: DEFAULT_BUFFERS."""
    bands: int | None = None
    """Number of bands; default: min_sep, or the number of least loss for band-fhu and bisr."""
    objective: Objective | None = None
    """Loss to minimise; default: "max" for a BLT and "rms" for others, as in their papers."""
    targets: tuple[Target, ...] = ()
    """Weighted outcomes to optimise a BLT for, instead of one participation."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError.of("kind", self.kind, "is unknown", f"choose from {', '.join(KINDS)}")
        if self.buffers is not None and self.kind != "blt":
            raise InputError.of(
                "buffers", self.buffers, "is only for a blt", f"leave it out for {self.kind}"
            )
        has_bands = self.kind in ("banded", "banded-toeplitz", "band-fhu", "bisr")
        if self.bands is not None and not has_bands:
            raise InputError.of("bands", self.bands, f"is not for {self.kind}", "leave it out")
        if self.bands is not None and not 1 <= self.bands <= self.participation.rounds:
            rule = f"must be from 1 to `rounds={self.participation.rounds}`"
            raise InputError.of("bands", self.bands, rule)
        if self.objective not in (None, "max", "rms"):
            raise InputError.of("objective", self.objective, "must be max or rms")
        if self.targets and self.kind != "blt":
            raise InputError(
                "targets: only a blt is optimised for several outcomes; leave them out for "
                f"{self.kind}"
            )

    @property
    def used_objective(self) -> Objective:
        """The objective given, or the default of the kind."""
        return self.objective or ("max" if self.kind == "blt" else "rms")


def cached_mechanism(
    request: MechanismRequest,
    directory: Path,
    on_progress: Progress | None = None,
    on_warning: Progress = warnings.warn,
) -> Strategy:
    """Returns the strategy of a request, from the cache if possible; see `optimize_mechanism`.

    A damaged entry, or one of another request, causes a warning and is recomputed. If the cache
    cannot be written, the result is not cached.

    Args:
        request: the kind and its setting.
        directory: directory of the cache.
        on_progress: receives progress lines.
        on_warning: receives warnings.
    """
    digest = _digest(request)
    path = directory / f"{digest}.json"
    try:
        content = read_kept(path, digest)
        if content is not None:
            return _strategy_of(content, directory)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        on_warning(f"the cached mechanism {str(path)!r} {reason}; recomputing it")
    is_ended_early = False

    def report(line: str) -> None:
        nonlocal is_ended_early
        try:
            if on_progress:
                on_progress(line)
        except StopIteration:
            is_ended_early = True
            raise

    strategy = optimize_mechanism(request, report)
    # A search to its end may find a better mechanism, so this one is not cached.
    if is_ended_early:
        return strategy
    try:
        directory.mkdir(parents=True, exist_ok=True)
        keep(path, digest, json.dumps(document_of(strategy, path)).encode())
    except OSError as error:
        if on_progress:
            on_progress(f"not cached: {error}")
    return strategy


@lru_cache(maxsize=16)
def made_mechanism(request: MechanismRequest, directory: Path | None) -> Strategy:
    """Returns the strategy of a request, for studies that need the same ones repeatedly. The
    process remembers the last results.

    Args:
        request: the kind and its setting.
        directory: directory of the cache, or None for no cache.
    """
    if directory is None:
        return optimize_mechanism(request)
    return cached_mechanism(request, directory)


def _strategy_of(content: bytes, directory: Path) -> Strategy:
    """Reads an entry of the cache. Raises InputError."""
    try:
        # This also compares a matrix with the digest in the entry.
        return strategy_of(json.loads(content), directory)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        raise InputError(message.removeprefix("Value error, ")) from None


def default_cache() -> Path:
    """Returns the directory in the user's cache for results of `fedray optimize`; it may be removed
    at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedray" / "designs"


def optimize_mechanism(request: MechanismRequest, on_progress: Progress | None = None) -> Strategy:
    """Returns the strategy of a request, deterministically.

    Args:
        request: the kind and its setting.
        on_progress: receives progress lines of the search. If it raises StopIteration, the search
            ends and the best result so far is returned.

    Raises:
        InputError: the request is impossible.
        OptimizationFailed: no result of the search is valid.
    """
    participation = request.participation
    objective = request.used_objective
    bands = request.bands
    if bands is None:
        # The most bands for which the columns of one device are orthogonal.
        bands = min(participation.min_sep, participation.rounds)
    # Optimisers are imported when used: scipy.optimize takes 0.3 s, jax 0.8 s.
    match request.kind:
        case "identity":
            return Identity()
        case "tree":
            return Tree()
        case "tree-full":
            return TreeFull(rounds=participation.rounds)
        case "band-fhu" | "bisr":
            kind = BandFHU if request.kind == "band-fhu" else BISR
            if request.bands is not None:
                return kind(bands=request.bands)
            return _best_bands(kind, participation, objective, on_progress)
        case "blt":
            from fedray.mechanisms.optimize.blt import optimize_blt

            targets = request.targets or (Target(participation),)
            buffers = DEFAULT_BUFFERS if request.buffers is None else request.buffers
            return optimize_blt(targets, buffers, objective, on_progress)
        case "banded-toeplitz":
            from fedray.mechanisms.optimize.toeplitz import optimize_toeplitz

            return optimize_toeplitz(participation, bands, objective, on_progress)
        case "banded":
            from fedray.mechanisms.optimize.gram import optimize_banded

            return optimize_banded(participation, bands, objective, on_progress)
        case "dense":
            from fedray.mechanisms.optimize.gram import optimize_dense

            return optimize_dense(participation, objective, on_progress)


def _best_bands(
    kind: type[BandFHU | BISR],
    participation: MinSep,
    objective: Objective,
    on_progress: Progress | None,
) -> BandFHU | BISR:
    """Returns the mechanism of least loss: the best of 24 geometrically spaced numbers of bands,
    then improved by steps that halve until neither neighbour is better."""
    known: dict[int, float] = {}

    def value(bands: int) -> float:
        if bands not in known:
            figures = loss(kind(bands=bands), participation)
            known[bands] = figures.max_loss if objective == "max" else figures.rms_loss
            if on_progress:
                on_progress(f"bands {bands}: loss {known[bands]:.6f}")
        return known[bands]

    n = participation.rounds
    # With many bands one more changes little, so few large numbers are tried.
    geometric = {min(n, max(1, round(n ** (place / 23)))) for place in range(24)}
    grid = sorted(geometric | {min(n, participation.min_sep)})
    try:
        best = min(grid, key=value)
        step = n
        while step > 0:
            neighbours = [b for b in (best - step, best, best + step) if 1 <= b <= n]
            nearer = min(neighbours, key=value)
            if nearer == best:
                step //= 2
            best = nearer
    except StopIteration:
        # `on_progress` ended the search.
        best = min(known, key=known.__getitem__)
    return kind(bands=best)


def _digest(request: MechanismRequest) -> str:
    """Returns a digest of the request, the optimisers' code and their libraries."""
    tools = {name: importlib.metadata.version(name) for name in ("numpy", "scipy", "jax")}
    # Entries of other code are not used, because it may have found another mechanism.
    files = sorted(Path(__file__).parent.glob("*.py"))
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    inputs = {**asdict(request), "objective": request.used_objective, "code": code, "tools": tools}
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
