"""Availability models on FLASH: fitted to some days of its phones, and scored on the others.

The data are phones of Yang et al. 2021 (FLASH) at the half hours of whole days: idle, charging and
on wifi, or not, or unknown. Every model predicts the half hours of held-out days twice: by the time
of day, and given when the phone was eligible on the fitted days, as the mean of the simulated
phones that were eligible most alike.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import fedray
from fedray import InputError
from fedray.scenario import ConditionsAvailability, HabitAvailability, PoissonAvailability
from . import reproduction as public
from .reproduction import Document, Figure, MeanInterval, Option, Reproduced, Request

STEPS, QUARTER = 48, 12
"""Half hours of a day and of its quarters, whose shares describe when a phone is eligible."""
COPIES, NEAREST, DRAWS = 20, 200, 400
"""Simulated phones for each phone, fewest that predict a phone, draws of the bootstrap."""
FITTED = HabitAvailability(), ConditionsAvailability(), PoissonAvailability()
Values = NDArray[Any]


class Phones(NamedTuple):
    """Phones [N] at half hours [T]: eligible (or unknown), known, and whether it is fitted [T]."""

    eligible: Values
    known: Values
    is_fitted: Values


@dataclass(frozen=True, slots=True)
class Study(Document):
    """Availability models on held-out days; intervals are 95 %, by the bootstrap over phones."""

    log_likelihood: dict[str, float]
    """Mean log-likelihood of a half hour, nats, by predictions; the best first."""
    behind: dict[str, MeanInterval]
    """Distance to the best predictions."""
    observed: dict[str, MeanInterval]
    """Moments of the phones."""
    simulated: dict[str, dict[str, float]]
    """Moments of simulated phones with the same gaps, by model."""
    unexplained: tuple[str, ...]
    """Moments that every model misses."""


def run(request: Request, *, data: Path | None, fitted: str, seed: int) -> Iterator[Reproduced]:
    """Fits, simulates and scores every model. Raises InputError for unusable data or days."""
    phones = read_phones(data, fitted)
    known, fits, tables, notes = phones.known & phones.is_fitted, {}, {}, []
    with tempfile.TemporaryDirectory(prefix="fedray-flash-") as folder:
        log = _written(Path(folder, "log.parquet"), phones.eligible, known)
        columns = fedray.RecordColumns(state="eligible", time_unit="seconds")
        observed = fedray.read_observed_log(Path(log), columns, step_minutes=30)
        for table, tell in public.in_steps(
            request,
            FITTED,
            name=lambda table: f"fitting {table.model}",
            # A model with more keys has more parameters to fit.
            cost=lambda table: len(type(table).model_fields),
        ):
            fits[table.model] = fedray.fit_habits(
                observed,
                table,
                seed=seed,
                on_progress=lambda line, tell=tell: tell(public.share_of(line)),
            )
        for model in (table.model for table in FITTED):
            tables[model] = fits[model].to_tables()["availability"]
            j = f"J {fits[model].j_statistic:.0f} on {fits[model].degrees_of_freedom}"
            notes.append(f"{model}: {len(fits[model].estimates)} fitted parameters, {j}.")
        days = (each[:, phones.is_fitted].reshape(len(known), -1, STEPS) for each in phones[:2])
        on, seen = days
        # A recording has no gaps: the next day fills an unknown half hour, if it is known.
        for _ in range(1, seen.shape[1]):
            on, seen = np.where(seen, on, np.roll(on, -1, axis=1)), seen | np.roll(seen, -1, axis=1)
        on = on.reshape(len(known), -1)
        recording = _written(Path(folder, "recording.parquet"), on, on)
        replay = {"model": "replay", "file": recording, "recorded_devices": len(known)}
        tables["replay"] = {**replay, "period_days": seen.shape[1], "day_shift": "uniform"}
        request.on_progress(public.Announcement("simulating"))
        simulated = {name: _simulated(each, phones, seed) for name, each in tables.items()}
    study, figure = _study(phones, simulated, seed), _day(phones, simulated)
    yield _reproduced(study, figure, notes, len(known))


def read_phones(data: Path | None, fitted: str) -> Phones:
    """Reads the whole days of a file, some of which are fitted."""
    try:
        with np.load(data or "", allow_pickle=False) as file:
            steps = int(file["shape"][0]) // STEPS * STEPS
            bits = (np.unpackbits(file[name], axis=0) for name in ("known", "eligible"))
            known, eligible = (each[:steps].T.astype(np.bool_) for each in bits)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError.of("data", str(data), f"cannot be read ({error})", "name a file") from None
    days = [str(1 + step // STEPS) for step in range(steps)]
    if not set(fitted.split(",")) < set(days):
        raise InputError.of("fitted", fitted, f"must be some of the days 1 to {steps // STEPS}")
    return Phones(eligible & known, known, np.isin(days, fitted.split(",")))


def _written(file: Path, eligible: Values, known: Values) -> str:
    """Writes a row for each known half hour."""
    device, step = np.nonzero(known)
    rows = [device, 1800.0 * step, 1800.0 * (step + 1), eligible[known]]
    pq.write_table(pa.table(rows, ["device", "start", "end", "eligible"]), file)
    return str(file)


def _simulated(table: dict[str, Any], phones: Phones, seed: int) -> Values:
    """Returns whether COPIES N simulated phones are eligible at the half hours."""
    devices, days = COPIES * len(phones.known), phones.is_fitted.size // STEPS
    rest = {"rounds": {"count": 1, "report_goal": 1}, "training": {"enabled": False}}
    population = {"seed": seed, "population": {"devices": devices}, "availability": table}
    scenario = fedray.Scenario.from_tables({**rest, **population})
    blocks = list(public.population_sessions(scenario, devices, days))
    device, start, end = (np.concatenate([each[at] for each in blocks]) for at in (2, 3, 4))
    return public.on_grid(device, start / 3600, end / 3600, (devices, STEPS * days), days)


def _study(phones: Phones, simulated: Mapping[str, Values], seed: int) -> Study:
    count, held_out = len(phones.known), phones.known & ~phones.is_fitted
    others = np.random.default_rng(seed).integers(count, size=(DRAWS, count))
    # The first sample has every phone once: the estimate.
    samples = np.vstack([np.arange(count), others])
    means = {}
    for name, chances in _predictions(phones, simulated).items():
        logs = held_out * np.log(np.where(phones.eligible, chances, 1.0 - chances))
        totals, counts = (x.sum(axis=1)[samples].sum(axis=1) for x in (logs, held_out))
        means[name] = totals / counts
    means = dict(sorted(means.items(), key=lambda item: -item[1][0]))
    best = next(iter(means.values()))
    taken = ((phones.eligible[each], phones.known[each]) for each in samples)
    drawn = [moments_of(*each, phones.is_fitted) for each in taken]
    observed = {name: _interval(np.array([x[name] for x in drawn])) for name in drawn[0]}
    found: dict[str, dict[str, float]] = {}
    for model, states in simulated.items():
        copies = [moments_of(each, *phones[1:]) for each in np.split(states, COPIES)]
        found[model] = {name: float(np.mean([x[name] for x in copies])) for name in observed}
    missed = [n for n, x in observed.items() if not any(_is_in(x, y[n]) for y in found.values())]
    likelihood = {name: float(each[0]) for name, each in means.items()}
    behind = {name: _interval(best - each) for name, each in means.items()}
    return Study(likelihood, behind, observed, found, tuple(missed))


def _interval(draws: Values) -> MeanInterval:
    """Returns the first of the draws with the interval of the others."""
    low, high = np.quantile(draws[1:], [0.025, 0.975]).tolist()
    return MeanInterval(float(draws[0]), DRAWS, low, high)


def _is_in(interval: MeanInterval, value: float) -> bool:
    return interval.low <= value <= interval.high


def _predictions(phones: Phones, simulated: Mapping[str, Values]) -> dict[str, Values]:
    """Returns the probabilities that phones are eligible, [T] or [N, T]."""
    known, clock = phones.known & phones.is_fitted, np.arange(phones.is_fitted.size) % STEPS
    eligible = phones.eligible & known
    mean = eligible.sum() / known.sum()
    hits, looks = (np.bincount(clock, each.sum(axis=0)) for each in (eligible, known))
    share = ((hits + mean) / (looks + 1.0))[clock]
    # A day of the mean is added to the phone's own, so that no probability is 0.
    own = (eligible.sum(axis=1) / mean + STEPS) / (known.sum(axis=1) + STEPS)
    found = {"constant": np.full(share.shape, mean), "shares by the time of day": share}
    found["shares by the phone's days"] = np.minimum(np.outer(own, share), 0.99)
    for name, states in simulated.items():
        near = _nearest(eligible, known, states, clock // QUARTER).astype(np.float32)
        chances = (states.sum(axis=0) + mean) / (len(states) + 1)
        # The copies of one phone have the mean, so that no probability is 0.
        sums = near @ states.astype(np.float32) + COPIES * chances
        found[f"{name} by the time of day"] = chances
        found[f"{name} by the phone's days"] = sums / (near.sum(axis=1, keepdims=True) + COPIES)
    return found


def _nearest(eligible: Values, known: Values, states: Values, quarter: Values) -> Values:
    """Returns which simulated phones [S] predict each phone [N]."""
    distance = np.zeros((len(known), len(states)))
    for each in np.unique(quarter):
        looks = (known & (quarter == each)).astype(np.float32)
        most = np.maximum(1.0, looks.sum(axis=1, keepdims=True))
        mine = (looks * eligible).sum(axis=1, keepdims=True)
        # Roots of shares have about the same variance, whatever the share is.
        distance += (np.sqrt(looks @ states.T / most) - np.sqrt(mine / most)) ** 2
    # Equal distances count alike: a phone that was never eligible has many.
    limit = np.partition(distance, NEAREST, axis=1)[:, NEAREST : NEAREST + 1]
    return distance <= limit + 1e-9


def moments_of(eligible: Values, known: Values, is_fitted: Values) -> dict[str, float]:
    """Returns the moments of phones on held-out days, by name."""
    was, now = known & is_fitted, known & ~is_fitted
    states = eligible & now
    on, seen = (each.sum(axis=0).reshape(-1, 6, 8).sum(axis=(0, 2)) for each in (states, now))
    came, asked = (each.reshape(len(known), -1, STEPS).any(axis=2) for each in (states, now))
    days = came.sum(axis=1) / np.maximum(1, asked.sum(axis=1))
    runs = public.runs_of(states, known.shape[1] // STEPS)
    hours, counts = runs.ends - runs.starts, np.sort(states.sum(axis=1))
    both = now[:, STEPS:] & known[:, :-STEPS]
    a_day_apart = eligible[:, STEPS:][both], eligible[:, :-STEPS][both]
    own, before = ((eligible & x).sum(axis=1) / np.maximum(1, x.sum(axis=1)) for x in (now, was))
    return {
        "mean share eligible": states.sum() / now.sum(),
        "mean share over that of fitted days": states.sum() / now.sum() / eligible[was].mean(),
        "most over fewest of four hours": (on / seen).max() / (on / seen).min(),
        "phones eligible on a day": came.sum() / asked.sum(),
        "phones eligible on no day": np.mean(days == 0),
        "phones eligible on every day": np.mean(days == 1),
        "mean hours of a run": hours.mean(),
        "hours of a run, 90 % quantile": np.quantile(hours, 0.9),
        "correlation with 24 hours earlier": np.corrcoef(*a_day_apart)[0, 1],
        "correlation of phones with fitted days": np.corrcoef(own, before)[0, 1],
        "share held by a tenth of the phones": counts[-len(counts) // 10 :].sum() / counts.sum(),
    }


def _reproduced(study: Study, figure: Figure, notes: list[str], phones: int) -> Reproduced:
    scores = [("predictions", "nats for a half hour", "behind the best")]
    for name, value in study.log_likelihood.items():
        scores.append((name, f"{value:.4f}", _text(study.behind[name])))
    moments = [("moment", "observed", *study.simulated)]
    for name, each in study.observed.items():
        values = [own[name] for own in study.simulated.values()]
        cells = [f"{value:.3f}{'' if _is_in(each, value) else ' outside'}" for value in values]
        moments.append((name, _text(each), *cells))
    tables = [
        public.Table.headed("Log-likelihood of held-out half hours", scores),
        public.Table.headed("Moments of held-out days", moments),
    ]
    verdict = (
        f"Best predictions: {scores[1][0]}; {scores[2][0]}: {scores[2][2]} nats behind. No model "
        f"explains: {'; '.join(study.unexplained) or 'nothing'}."
    )
    title = "FLASH: availability models on held-out days"
    notes = ["Intervals are 95 %, by the bootstrap over phones.", *notes]
    return Reproduced(
        *(title, study.to_json(), tables, notes, verdict),
        drawn=[figure],
        subject=public.Subject(f"{phones:,} phones of FLASH", sample="held-out days"),
    )


def _text(value: MeanInterval) -> str:
    return f"{value.mean:.4f} [{public.figure_text(value.low)}, {public.figure_text(value.high)}]"


def _day(phones: Phones, simulated: Mapping[str, Values]) -> Figure:
    def curve(name: str, states: Values, known: Values) -> public.Series:
        """Share by time of day, with two standard errors over phones."""
        pair = (each[:, ~phones.is_fitted] for each in (states & known, known))
        on, seen = (each.reshape(len(known), -1, STEPS).sum(axis=1) for each in pair)
        share = on.sum(axis=0) / seen.sum(axis=0)
        half = 2.0 * np.sqrt(((on - share * seen) ** 2).sum(axis=0)) / seen.sum(axis=0)
        band = {"low": share - half, "high": share + half}
        return public.Series(name, "line", np.arange(STEPS) / 2, share, **band)

    lines = [curve(name, each, np.ones_like(each)) for name, each in simulated.items()]
    axes = public.Axis("hour of the day"), public.Axis("share of phones eligible")
    note = "Bands are two standard errors over phones."
    return Figure("day", "Held-out days", note, *axes, (curve("observed", *phones[:2]), *lines))


REPRODUCTION = public.Reproduction(
    "flash",
    "Availability models fitted to FLASH's phones, scored on held-out days.",
    "Yang et al. 2021",
    "minutes",
    run,
    (
        Option("data", Path | None, None, "NPZ file of packed bits: eligible, known, and shape."),
        Option(
            "fitted", str, "1,2,3", "Days to fit, with commas between; the others are held out."
        ),
        Option("seed", int, 1, "Seed of fits and simulations."),
    ),
    has_figures=True,
)
