"""The answer of a window, each private figure beside the exact ones, and that of several windows
together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.document import Document, InJson, NotInJson
from fedray.runs.coverage import CoverageGroup

MOST_ROWS = 10_000
"""Most rows of an answer in a document, the largest estimates first."""
ADDITIVE = ("count", "sum", "histogram", "open_histogram", "prefix_tree")
"""Questions whose answer grows with the devices. To compare it with that of all devices, it is
multiplied by the number of all devices over the number that came. Answers of several windows are
added."""


JOINT = ("quantiles", "prefix_tree")
"""Questions whose intervals of a window hold for all rows at once."""
EACH, ALL = "each row", "all rows"
"""Kinds of intervals: pointwise, which hold for one row each, and joint."""


class Row(NamedTuple):
    """One row of a private answer beside the exact ones."""

    label: str
    """Name of the key."""
    estimate: float
    """The private answer."""
    standard_error: float
    """Standard error of the noise; NaN if only the interval is known."""
    low: float
    """Lower end of the confidence interval."""
    high: float
    """Upper end."""
    bounded: float
    """Answer of the devices that came, from bounded contributions: the target of the estimate."""
    of_came: float
    """Exact answer of the devices that came, from unbounded contributions."""
    of_all: float
    """Exact answer of all devices, from unbounded contributions."""


@dataclass(frozen=True, slots=True)
class TrustAnswer(Document):
    """The answer of a window, or of several together, under one trust model."""

    trust: str
    """Kind of the trust model."""
    mechanism: str
    """Mechanism that answers."""
    keys: NotInJson[tuple[int, ...]]
    """Keys of the released rows [R], in the order of `labels`."""
    labels: NotInJson[tuple[str, ...]]
    """Names of the keys of the released rows [R], the largest estimates first."""
    rows: tuple[Row, ...]
    """The rows with the largest estimates, at most 10,000."""
    error: float
    """Root mean square of estimate minus the answer of the bounded contributions that came, over
    the rows; NaN without rows."""
    stated_error: float
    """Root mean square of the stated standard errors; NaN if only intervals are known."""
    error_claim: str
    """Whether the stated errors are "exact", a "bound" or an "estimate"."""
    half_interval: float
    """Mean half width of the confidence intervals; NaN without rows."""
    confidence: float
    """Stated probability that an interval holds the answer of the bounded contributions. Intervals
    of several windows together are those of a normal law with the stated error."""
    inside: float
    """Share of the rows whose interval holds it; NaN without rows."""
    share: float
    """Sum of the exact answers of all devices at the released keys over the sum at all keys; NaN
    unless the question is additive and the window a single one."""
    bounding: float
    """Change of the exact answer of the devices that came by bounding contributions: the change
    itself for one row, else its root mean square over rows; NaN without rows."""
    coverage: float
    """Exact answer of the devices that came, times the window's `scale`, minus that of all devices:
    the difference for one row, else its root mean square over rows; NaN if unknown."""

    @property
    def released(self) -> InJson[int]:
        """R, number of released rows."""
        return len(self.labels)

    @property
    def noise(self) -> float:
        """Stated standard error of a row, or half the width of its interval if that is unknown."""
        return self.half_interval if math.isnan(self.stated_error) else self.stated_error

    @property
    def is_mostly_bounded(self) -> bool:
        """Whether bounding changes the answer more than noise does. An interval, which is about
        the bounded contributions, then says little about what devices hold."""
        return abs(self.bounding) > self.noise


@dataclass(frozen=True, slots=True)
class WindowAnswer(Document):
    """A window, or several together: who came, and the answers."""

    window: int
    """Number of the window, from 0; the first one of several."""
    windows: int
    """Number of windows whose answers these are."""
    pooling: str
    """Whether they are the "sum" or the "mean" of the answers of the windows; empty for one."""
    start_hours: float
    """Start of the window, hours since the start of the run."""
    end_hours: float
    """End of the window."""
    coverage: tuple[CoverageGroup, ...]
    """Groups of devices, and how many of each came; the whole population first. Over several
    windows a device counts once in each."""
    scale: float
    """Devices of the population over devices that came for an additive question, else 1."""
    answers: tuple[TrustAnswer, ...]
    """Answers, in the order of the scenario's trust models."""

    @property
    def devices(self) -> InJson[int]:
        """Number of devices in the population during the window."""
        return self.coverage[0].devices

    @property
    def came(self) -> InJson[int]:
        """Number of them that answered."""
        return self.coverage[0].came


def interval_kind(question: str, window: WindowAnswer, answer: TrustAnswer) -> str:
    """Returns the kind of an answer's intervals: for each row or for all rows at once, and only
    after bounding if that moves the answer more than noise does.

    Args:
        question: kind of the question.
        window: window of the answer, or several together.
        answer: answer under one trust model.
    """
    kind = ALL if question in JOINT and not window.pooling else EACH
    return f"{kind}{', after bounding only' if answer.is_mostly_bounded else ''}"


def answer_of_rows(
    trust: str,
    mechanism: str,
    claim: str,
    confidence: float,
    named: Iterable[tuple[int, str]],
    columns: Float64Array,
    scale: float,
    total: float = math.nan,
) -> TrustAnswer:
    """Returns an answer with its errors.

    Args:
        trust: kind of the trust model.
        mechanism: its mechanism.
        claim: kind of its standard errors.
        confidence: probability of its intervals.
        named: key and name of each row, [R].
        columns: [R, 7], the fields of `Row` after the label.
        scale: `WindowAnswer.scale`.
        total: sum of the exact answers of all devices at all keys; NaN if it means nothing.
    """
    order = np.argsort(-columns[:, 0], kind="stable")
    pairs = list(named)
    keys, labels = (tuple(pairs[row][part] for row in order.tolist()) for part in (0, 1))
    estimates, errors, low, high, bounded, of_came, of_all = columns.T
    rows = columns[order[:MOST_ROWS]].tolist()
    is_inside = (low <= bounded) & (bounded <= high)
    return TrustAnswer(
        trust=trust,
        mechanism=mechanism,
        keys=keys,
        labels=labels,
        rows=tuple(Row(label, *row) for label, row in zip(labels, rows, strict=False)),
        error=root_mean_square(estimates - bounded),
        stated_error=root_mean_square(errors),
        error_claim=claim,
        half_interval=float(np.mean(high - low)) / 2 if labels else math.nan,
        confidence=confidence,
        inside=float(is_inside.mean()) if labels else math.nan,
        share=float(of_all.sum() / total) if total else math.nan,
        bounding=_change(bounded - of_came),
        coverage=_change(scale * of_came - of_all),
    )


def pooled(windows: Sequence[WindowAnswer], question: str) -> WindowAnswer | None:
    """Returns the answers of several windows together; None for one window, for questions whose
    answers have no sum or mean that is an answer (quantiles, distinct), and if a window has more
    rows than are kept, or an unknown error.

    Additive answers are added, so a device counts once in every window in which it came. Means are
    weighted by the devices that came. A row is pooled if every window released it. Noise of
    different windows is independent, so the squares of the standard errors add up.

    Args:
        windows: the answers of the windows, in order.
        question: kind of the question.
    """
    is_additive = question in ADDITIVE
    if len(windows) < 2 or not (is_additive or question == "mean"):
        return None
    answers = [each for window in windows for each in window.answers]
    # A window with too many rows has those of the largest noise, whose sum would be biased; and an
    # answer without a standard error has none to add.
    if any(len(each.keys) > len(each.rows) for each in answers) or any(
        math.isnan(row.standard_error) for each in answers for row in each.rows
    ):
        return None
    came = np.array([each.came for each in windows], np.float64)
    weights = np.ones(came.size) if is_additive else came / came.sum()
    coverage = _coverage_of(windows)
    scale = coverage[0].devices / coverage[0].came if is_additive else 1.0
    by_trust = zip(*(each.answers for each in windows), strict=True)
    return WindowAnswer(
        window=windows[0].window,
        windows=len(windows),
        pooling="sum" if is_additive else "mean",
        start_hours=windows[0].start_hours,
        end_hours=windows[-1].end_hours,
        coverage=coverage,
        scale=scale,
        answers=tuple(_pooled_answer(each, weights, scale) for each in by_trust),
    )


def _coverage_of(windows: Sequence[WindowAnswer]) -> tuple[CoverageGroup, ...]:
    groups: dict[tuple[str, str], list[CoverageGroup]] = {}
    for each in windows:
        for group in each.coverage:
            groups.setdefault((group.by, group.label), []).append(group)
    return tuple(
        CoverageGroup(*name, sum(each.devices for each in of), sum(each.came for each in of))
        for name, of in groups.items()
    )


def _pooled_answer(
    answers: Sequence[TrustAnswer], weights: Float64Array, scale: float
) -> TrustAnswer:
    first = answers[0]
    found = [dict(zip(each.keys, each.rows, strict=True)) for each in answers]
    keys = [key for key in found[0] if all(key in each for each in found)]
    rows = np.array([[each[key][1:] for key in keys] for each in found], np.float64)
    # [W, R, 7], without rows too.
    rows = rows.reshape(len(answers), len(keys), len(Row._fields) - 1)
    columns = np.tensordot(weights, rows, 1)
    errors = np.sqrt(np.tensordot(weights**2, rows[:, :, 1] ** 2, 1))
    reach = NormalDist().inv_cdf((1.0 + first.confidence) / 2.0) * errors
    estimates = columns[:, 0]
    columns[:, 1:4] = np.stack([errors, estimates - reach, estimates + reach], axis=1)
    named = [(key, found[0][key].label) for key in keys]
    head = first.trust, first.mechanism, first.error_claim, first.confidence
    return answer_of_rows(*head, named, columns, scale)


def root_mean_square(values: Float64Array) -> float:
    """Returns the root mean square; NaN without values."""
    return float(np.sqrt(np.mean(values**2))) if values.size else math.nan


def _change(values: Float64Array) -> float:
    """Returns the only value with its sign, or else the root mean square."""
    return float(values[0]) if values.size == 1 else root_mean_square(values)
