"""Entry point for every kind of mechanism: builds it, optimises it for a participation, or reads it
from the cache.

The cache (`$XDG_CACHE_HOME/fedray/designs`, else `~/.cache/fedray/designs`) is keyed by a digest of
all inputs, the code and its libraries. Each entry contains its key and a digest of the mechanism;
an entry that does not match them or is not a valid mechanism is recomputed.
"""

import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from fedray.base.errors import InputError
from fedray.base.kept import keep, read_kept
from fedray.base.nearest import nearest_first
from ..files import document_of, strategy_of
from ..loss import Objective, Purpose, check_objective, loss
from ..named import NAMED_PURPOSE, PARAMETERS, named_mechanism
from ..participation import MinSep
from ..registry import BISR, BLT, STRATEGY_KINDS, BandFHU, Identity, Tree, TreeFull
from ..strategy import Strategy
from ..workload import PREFIX, Workload
from .objective import Progress, Target

Kind = Literal[
    "blt",
    "banded",
    "banded-toeplitz",
    "band-fhu",
    "bisr",
    "dense",
    "tree",
    "tree-full",
    "identity",
    "blt-100",
    "blt-400",
    "blt-1000",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds that can be made for a setting; `RECIPES` says how each is made."""
NO_RECIPE = "has no recipe, since its parameters are your own"
"""Rule against making a kind of strategy that `RECIPES` lacks."""
Option = Literal["bands", "buffers", "targets"]
DEFAULT_BUFFERS = 4


@dataclass(frozen=True, slots=True)
class MechanismRequest:
    """A kind of mechanism and the setting to make it for. None stands for the kind's default."""

    kind: Kind
    """One of KINDS."""
    participation: MinSep
    """(n, b, k) to optimise for."""
    buffers: int | None = None
    """Number of buffers of a BLT; default: DEFAULT_BUFFERS."""
    bands: int | None = None
    """Number of bands; default: min_sep, or the number of least loss for band-fhu and bisr."""
    objective: Objective = "rms"
    """Loss to minimise."""
    targets: tuple[Target, ...] = ()
    """Weighted outcomes to optimise a BLT for, instead of one participation."""
    workload: Workload = PREFIX
    """Workload whose error to minimise."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            rule = NO_RECIPE if self.kind in STRATEGY_KINDS else "is unknown"
            nearest = ", ".join(nearest_first(self.kind, KINDS))
            raise InputError.of("kind", self.kind, rule, f"choose from {nearest}")
        for option in get_args(Option):
            value = getattr(self, option)
            is_given = value not in (None, ())
            if is_given and option not in RECIPES[self.kind].options:
                takers = [kind for kind, recipe in RECIPES.items() if option in recipe.options]
                remedy = f"leave it out, or choose {', '.join(takers)}"
                raise InputError.of(option, value, f"does not apply to {self.kind}", remedy)
        if self.bands is not None and not 1 <= self.bands <= self.participation.rounds:
            rule = f"must be from 1 to `rounds={self.participation.rounds}`"
            raise InputError.of("bands", self.bands, rule)
        check_objective(self.objective)

    @property
    def purpose(self) -> Purpose | None:
        """Loss and workload that the mechanism is made for; None if nothing is optimised. Finished
        mechanisms keep those of their paper."""
        if self.kind in PARAMETERS:
            return NAMED_PURPOSE
        is_closed_form = RECIPES[self.kind].searched == "nothing"
        is_fixed = RECIPES[self.kind].searched == "bands" and self.bands is not None
        if is_closed_form or is_fixed:
            return None
        return Purpose(self.objective, str(self.workload))

    @property
    def used_bands(self) -> int:
        """The number of bands given, or else the largest for which the columns of one device are
        orthogonal."""
        return self.bands or min(self.participation.min_sep, self.participation.rounds)


def cached_mechanism(
    request: MechanismRequest,
    directory: Path,
    on_progress: Progress | None = None,
    on_warning: Progress = warnings.warn,
) -> Strategy:
    """Returns the strategy of a request, from the cache if possible; see `optimize_mechanism`.

    A damaged entry, or one that belongs to another request, causes a warning and is recomputed. If
    the cache cannot be written, the result is not cached.

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
    strategy = optimize_mechanism(request, on_progress)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        keep(path, digest, json.dumps(document_of(strategy, path)).encode())
    except (OSError, InputError) as error:
        if on_progress:
            on_progress(f"not cached: {error}")
    return strategy


@lru_cache(maxsize=16)
def made_mechanism(request: MechanismRequest, directory: Path | None) -> Strategy:
    """Returns the strategy of a request, for studies that need the same strategies repeatedly. The
    process remembers the latest results.

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
        # This also checks a matrix against the digest in the entry.
        return strategy_of(json.loads(content), directory)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        raise InputError(message.removeprefix("Value error, ")) from None


def optimize_mechanism(request: MechanismRequest, on_progress: Progress | None = None) -> Strategy:
    """Returns the strategy of a request, deterministically.

    Args:
        request: the kind and its setting.
        on_progress: receives progress lines of the search.

    Raises:
        InputError: the request is impossible.
        OptimizationFailed: no result of the search is valid.
    """
    return RECIPES[request.kind].make(request, on_progress)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Method of making a kind of mechanism for a setting."""

    make: Callable[[MechanismRequest, Progress | None], Strategy]
    """Function from a request to its strategy."""
    searched: Literal["nothing", "bands", "everything"]
    """Parameters to search for. "nothing": they follow from the number of rounds; "bands": only the
    number of bands is open; "everything": a numerical search, whose result is kept in a file."""
    options: tuple[Option, ...] = ()
    """Optional fields of a request that apply to this kind."""


def _tree_full(request: MechanismRequest, on_progress: Progress | None) -> TreeFull:
    del on_progress
    return TreeFull(rounds=request.participation.rounds)


def _named(request: MechanismRequest, on_progress: Progress | None) -> BLT:
    del on_progress
    return named_mechanism(request.kind)


def _blt(request: MechanismRequest, on_progress: Progress | None) -> Strategy:
    # Optimisers are imported only when used: scipy.optimize takes 0.3 s.
    from .blt import optimize_blt

    targets = request.targets or (Target(request.participation),)
    buffers = DEFAULT_BUFFERS if request.buffers is None else request.buffers
    return optimize_blt(targets, buffers, request.objective, on_progress, request.workload)


def _toeplitz(request: MechanismRequest, on_progress: Progress | None) -> Strategy:
    from .toeplitz import optimize_toeplitz

    bands, objective = request.used_bands, request.objective
    return optimize_toeplitz(request.participation, bands, objective, on_progress, request.workload)


def _banded(request: MechanismRequest, on_progress: Progress | None) -> Strategy:
    from .gram import optimize_banded

    bands, objective = request.used_bands, request.objective
    return optimize_banded(request.participation, bands, objective, on_progress, request.workload)


def _dense(request: MechanismRequest, on_progress: Progress | None) -> Strategy:
    from .gram import optimize_dense

    return optimize_dense(request.participation, request.objective, on_progress, request.workload)


def _best_bands(
    kind: type[BandFHU | BISR], request: MechanismRequest, on_progress: Progress | None
) -> BandFHU | BISR:
    """Returns the mechanism with the requested number of bands or, if none is given, with the
    number of least loss: the best of 24 geometrically spaced numbers, improved by steps that halve
    until neither neighbour is better."""
    if request.bands is not None:
        return kind(bands=request.bands)
    participation = request.participation
    known: dict[int, float] = {}

    def value(bands: int) -> float:
        if bands not in known:
            figures = loss(kind(bands=bands), participation, request.workload)
            known[bands] = figures.of(request.objective)
            if on_progress:
                on_progress(f"bands {bands}: loss {known[bands]:.6f}")
        return known[bands]

    n = participation.rounds
    # With many bands, one more changes little, so few large numbers are tried.
    geometric = {min(n, max(1, round(n ** (place / 23)))) for place in range(24)}
    grid = sorted(geometric | {min(n, participation.min_sep)})
    return kind(bands=best_number(value, grid, n))


def best_number(value: Callable[[int], float], grid: Iterable[int], most: int) -> int:
    """Returns a number from 1 to `most` of small `value`: the best of a grid, improved by steps
    that halve until neither neighbour is better."""
    # Slightly heuristic: the best number may lie in a dip that no grid point is near.
    # The value need not have a single minimum, so the grid comes first and the steps after.
    best = min(grid, key=value)
    step = most
    while step > 0:
        neighbours = [b for b in (best - step, best, best + step) if 1 <= b <= most]
        nearer = min(neighbours, key=value)
        if nearer == best:
            step //= 2
        best = nearer
    return best


RECIPES: Mapping[Kind, Recipe] = {
    "blt": Recipe(_blt, "everything", ("buffers", "targets")),
    "banded": Recipe(_banded, "everything", ("bands",)),
    "banded-toeplitz": Recipe(_toeplitz, "everything", ("bands",)),
    "band-fhu": Recipe(partial(_best_bands, BandFHU), "bands", ("bands",)),
    "bisr": Recipe(partial(_best_bands, BISR), "bands", ("bands",)),
    "dense": Recipe(_dense, "everything"),
    "tree": Recipe(lambda *_: Tree(), "nothing"),
    "tree-full": Recipe(_tree_full, "nothing"),
    "identity": Recipe(lambda *_: Identity(), "nothing"),
    "blt-100": Recipe(_named, "nothing"),
    "blt-400": Recipe(_named, "nothing"),
    "blt-1000": Recipe(_named, "nothing"),
}
FOLLOWING_KINDS = tuple(kind for kind in KINDS if RECIPES[kind].searched != "everything")
"""Kinds that need no file, because they are quick to make for every setting."""


def _digest(request: MechanismRequest) -> str:
    """Returns a digest of the request, the optimisers' code and their libraries."""
    tools = {name: importlib.metadata.version(name) for name in ("numpy", "scipy")}
    # Entries made by other code are not used, because it may have found another mechanism.
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(__file__).parents[1] / "blt.py"]
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    inputs = {**asdict(request), "code": code, "tools": tools}
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
