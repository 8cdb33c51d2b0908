"""Answers to the question of a scenario, computed from a trace: the devices of round r answered in
window r.

A simulation knows what every device holds. So each private answer stands beside the exact answer
of the devices that came, which shows the noise, and that of all devices, which shows the coverage
bias: devices that had not come by the end of the window may be unlike the others.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace, persons_with_model
from fedray.audit.claims import Claim
from fedray.audit.guarantees import enforced_limits
from fedray.audit.questions import AnswerPrivacy, privacy_of_answers
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.atomic import write_beside, write_output, write_whole
from fedray.base.document import IfAny, InJson, Key, NotInJson
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.base.rng import Stream, stream_generator
from fedray.clients.values.values import held_by, of_rows, values_of
from fedray.mechanisms.questions.question import Items, Plan, Truth
from fedray.runs.coverage import Devices
from fedray.runs.ensured import check_trace
from fedray.runs.evaluated import EvaluatedModel
from fedray.runs.learning import scenario_of
from fedray.runs.window_answers import (
    ADDITIVE,
    TrustAnswer,
    WindowAnswer,
    answer_of_rows,
    interval_kind,
    pooled,
    root_mean_square,
)
from fedray.scenario import Scenario
from fedray.scenario.analytics import Analytics
from fedray.trace.evaluated import devices_of_rounds
from fedray.trace.reader import Trace
from fedray.wire.members import are_members

ANSWER_FILE = "answer.json"
BY_KEY = ("histogram", "open_histogram", "prefix_tree")
"""Questions whose rows are keys of the devices' values; the last two find them."""
KNOWN_HERE = (
    "The exact answers, and that of all devices above all, are known in a simulation only. A "
    "device holds the same in every window, except in an evaluation, which has no exact answer of "
    "all devices: that would take an evaluation on each of them in every round."
)


@dataclass(frozen=True)
class Answers(DrawnResult):
    """Private answers of every window and trust model, with their errors and coverage."""

    TABLES: ClassVar[str] = "fedray.runs.answers_page:answers_tables"
    SUBJECT: ClassVar[str] = "fedray.runs.answers_page:answers_subject"
    FIGURES: ClassVar[str] = "fedray.runs.answers_page:answers_figures"
    PAGE: ClassVar[str] = "fedray.runs.answers_page:answers_page"
    HEADLINE: ClassVar[str] = "fedray.runs.answers_page:answers_headline"

    trace: NotInJson[Trace]
    """The trace."""
    path: Annotated[Path, Key("trace")]
    """Directory of the trace."""
    digest: str
    """The trace's digest."""
    asked: NotInJson[str]
    """Digest of the scenario that asks, whose noise the answers have."""
    analytics: Analytics
    """The question, values, trust models and budget."""
    is_instead: NotInJson[bool]
    """Whether this question is asked instead of the run's."""
    windows: tuple[WindowAnswer, ...]
    """The windows in order."""
    devices: int
    """Devices that answered in any of the windows."""
    pooled: WindowAnswer | None
    """All windows together: sums of an additive question, or the mean of means weighted by the
    devices that came. None for one window, quantiles, distinct and an evaluation, whose rounds are
    of different models."""
    remedy: str
    """Bounds of the question, such as "most_keys=8", with which bounding would change the answer of
    the first trust model no more than its noise does; empty if that is so already, or if the
    scenario refuses such bounds."""
    privacy: tuple[AnswerPrivacy, ...]
    """Privacy of a window, observed and enforced, for every trust model."""
    ensured: IfAny[str | None] = None
    """Digest of the claim that had to be ensured: that of the run, for its own question, unless
    another one was given. Absent without one."""
    top: NotInJson[int] = 12
    """Rows that its tables show of an answer, the largest estimates first."""
    note: ClassVar[InJson[str]] = KNOWN_HERE
    """Source of the exact answers."""

    @property
    def whole(self) -> WindowAnswer:
        """The answer that the headline gives: all windows together, or else the last one."""
        return self.pooled or self.windows[-1]

    def __repr__(self) -> str:
        kinds = ", ".join(each.kind for each in self.analytics.trust)
        kind = self.analytics.question.kind
        return f"<Answers to {kind}: {len(self.windows)} windows, trust {kinds}>"

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds of the question on a device's contribution, by key."""
        question = self.analytics.question.model_dump()
        return {key: question[key] for key in ("most_keys", "low", "high") if key in question}

    @property
    def column_names(self) -> dict[str, str]:
        """Headings of the figures of a row, by the fields of `Row`."""
        is_held = self.analytics.question.kind in BY_KEY
        of_all, of_came = ("hold it", "hold it and came") if is_held else ("all devices", "came")
        confidence = f"{100 * self.whole.answers[0].confidence:g} %"
        return {
            "of_all": of_all,
            "of_came": of_came,
            "bounded": "after bounding",
            "estimate": "estimate",
            "low": f"{confidence} low",
            "high": f"{confidence} high",
        }

    def to_arrow(self) -> pa.Table:
        """Every row of every answer that the document has, of each window and of all together, with
        the headings of the tables: its window and hours, trust model, figures and kind of interval;
        the devices that came and the population, added up over windows; and the bounds, epsilon and
        delta of a device and window."""
        spent = {"epsilon": self.analytics.epsilon, "delta": self.analytics.delta}
        kind = self.analytics.question.kind
        together = [] if self.pooled is None else [self.pooled]
        rows = [
            {
                "window": f"the {window.pooling} of {window.windows} windows"
                if window.pooling
                else str(window.window),
                "start hours": window.start_hours,
                "end hours": window.end_hours,
                "trust": each.trust,
                "row": row.label,
                **{head: getattr(row, name) for name, head in self.column_names.items()},
                "standard error": row.standard_error,
                "interval": interval_kind(kind, window, each),
                "answers": window.came,
                "population": window.devices,
                **self.bounds,
                **spent,
            }
            for window in (*self.windows, *together)
            for each in window.answers
            for row in each.rows
        ]
        return pa.Table.from_pylist(rows)

    def write(self) -> Path:
        """Writes the document to answer.json in the trace's directory; returns its path."""
        return _write(self.path / ANSWER_FILE, self.to_json())

    def write_vocabulary(self, file: str | Path) -> Path:
        """Writes the words that the first trust model found in the last window, a line each, the
        most frequent first, and their cost beside it (`FILE.json`): the enforced privacy of all
        windows, since all were answered.

        As `data.vocabulary_file` of a training on recorded text, whose audit composes both (McMahan
        et al. 2018, appendix B).

        Args:
            file: file of the words.

        Returns:
            Its path.

        Raises:
            InputError: the question has a closed domain, the rules ensure nothing, or the file
                cannot be written.
        """
        kind = self.analytics.question.kind
        if kind not in BY_KEY[1:]:
            rule = "finds no words"
            raise InputError.of("analytics.question.kind", kind, rule, "ask an open_histogram")
        path, first = Path(file), self.windows[-1].answers[0]
        # The rows are in the order of the trust models.
        spent = next(each for each in self.privacy if each.basis == "enforced")
        if spent.event is None:
            raise InputError(
                f"trace {str(self.path)!r}: the cost of the words is unknown ({spent.reason}); see "
                "its audit"
            )
        text = "".join(f"{word}\n" for word in first.labels)
        cost = {
            "trust": spent.trust,
            "mechanism": spent.mechanism,
            "theorem": spent.theorem,
            "windows": spent.windows,
            "delta": spent.delta,
            "event": spent.event.to_json(),
            "vocabulary_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "run": self.asked,
        }
        document = {
            "trace_digest": self.digest,
            "words": len(first.labels),
            "epsilon": spent.epsilon,
            "cost": cost,
        }
        what = f"vocabulary {str(path)!r}"
        # The cost comes first: words without it would count as known for free.
        write_beside(path, lambda each: f"{each.name}.json", _json(document), what)
        write_output(path, text.encode(), what)
        return path


def answer(
    trace: Trace | str | Path,
    confidence: float = 0.95,
    scenario: Scenario | None = None,
    *,
    trust_code: bool = False,
    ensure: Claim | None = None,
) -> Answers:
    """Answers the question of a run in every window, under each of its trust models.

    All draws are addressed by the scenario's seed and the window, and by a question that is not the
    run's, so the answers are a function of both scenarios. In each window the trust models answer
    from the same bounded contributions.

    Args:
        trace: trace of a run whose rounds are all uploads of a window.
        confidence: probability of the intervals.
        scenario: scenario of the run with another question in place of its own; None for its own.
        trust_code: whether custom code that came with the trace may be run.
        ensure: claim that the rules and the trace must ensure; the answers record its digest.

    Raises:
        InputError: the scenario asks no question or is not that of the run, a trust model cannot
            answer it, a value is outside the question's domain, the confidence is impossible, code
            is not trusted, or the claim is not ensured.
        TraceError: the trace cannot be read.
    """
    opened = Trace.open(trace) if isinstance(trace, str | Path) else trace
    if ensure is not None:
        check_trace(ensure, opened, scenario or scenario_of(opened))
    found = answers_of(audit_trace(opened), confidence, scenario, trust_code=trust_code)
    return found if ensure is None else replace(found, ensured=ensure.digest)


def answers_of(
    audit: Audit,
    confidence: float = 0.95,
    scenario: Scenario | None = None,
    *,
    trust_code: bool = False,
) -> Answers:
    """Returns `answer` for a trace that is audited already."""
    opened, own = audit.trace, audit.scenario
    asked = own if scenario is None else scenario
    is_run = isinstance(opened, Trace)
    if not is_run or own is None or asked is None or asked.analytics is None:
        raise InputError(
            f"trace {str(opened.path)!r} is of a scenario without the table analytics, so there "
            "is no question to answer; add the table and run it"
        )
    if asked.model_copy(update={"analytics": own.analytics}) != own:
        raise InputError(
            "the scenario is not that of the trace: they differ in more than the table analytics, "
            "on which no trace depends; run the scenario"
        )
    if not trust_code:
        asked.demand_trust()
    asked_of, own_of = asked.evaluation, own.evaluation
    bins = {"low", "high"}
    others_of = [
        None if each is None else each.model_dump(exclude=bins) for each in (own_of, asked_of)
    ]
    if others_of[0] != others_of[1]:
        raise InputError(
            "analytics.values: the devices evaluated a model when the trace was trained, so their "
            "values cannot be others now; change low and high only, or run the scenario"
        )
    is_instead = asked.analytics != own.analytics
    asking = _Asked(asked, opened, confidence, is_instead)
    windows = tuple(asking.windows())
    together = None
    if asked.evaluation is None:
        together = pooled(windows, asked.analytics.question.kind)
    limits = enforced_limits(opened, own, None, audit.patterns)
    privacy = privacy_of_answers(
        asked,
        audit.patterns.max_participations,
        limits,
        audit.mechanisms[0].observed_and_enforced if audit.mechanisms else None,
        persons_with_model(audit.persons, audit.mechanisms),
    )
    return Answers(
        opened,
        opened.path,
        opened.digest,
        asked.digest,
        asked.analytics,
        is_instead,
        windows,
        audit.devices,
        together,
        asking.remedy(together or windows[-1]),
        privacy,
        None if is_instead else opened.run.get("ensured", {}).get("digest"),
    )


class _Asked:
    """The question of a scenario, ready for the devices of its windows.

    Args:
        scenario: scenario with the table `analytics`.
        trace: its trace.
        confidence: probability of the intervals.
        is_instead: whether the question is asked instead of the run's.
    """

    def __init__(
        self, scenario: Scenario, trace: Trace, confidence: float, is_instead: bool
    ) -> None:
        assert scenario.analytics is not None
        self._scenario, self._trace, self._confidence = scenario, trace, confidence
        self._analytics = scenario.analytics
        self._plans = self._analytics.plans(
            scenario.rounds.least_accepted, scenario.population.devices
        )
        self._devices = Devices(scenario)
        ids = self._devices.device_ids
        self._members = are_members(scenario, ids)
        self._device_ids = devices_of_rounds(trace)
        # Noise of another seed is independent, for runs on one population and for its tasks.
        self._seed = scenario.training_seed
        # With the noise of the run's answer, both answers together would show the exact one.
        digest = hashlib.sha256(self._analytics.model_dump_json().encode()).hexdigest()
        self._address = [int(digest, 16)] if is_instead else []
        self._evaluated = None
        if scenario.evaluation is not None:
            self._evaluated = EvaluatedModel(scenario, scenario.evaluation, trace)
            self._label = self._evaluated.label
            return
        values = values_of(scenario)
        self._label = values.label
        self._held = held_by(values, ids)

    def windows(self) -> Iterator[WindowAnswer]:
        """Yields the answers of the trace's windows, or rounds of an evaluation."""
        rounds, uploads = self._trace.rounds, self._scenario.rounds.uploads
        opened, closed = (rounds[name][rounds["state"] == 0] for name in ("opened", "closed"))
        # A round of stored uploads is formed when their window ends.
        spans = (opened, closed) if uploads is None else (opened - uploads.seconds, opened)
        spans = zip(*(times.tolist() for times in spans), strict=True)
        for window, (start, end) in enumerate(spans):
            yield self._window(window, start, end)

    def remedy(self, whole: WindowAnswer) -> str:
        """Returns bounds of the question, as overrides, with which bounding would change an answer
        by the first trust model no more than noise does; empty if that is so already.

        Args:
            whole: answer of a window, or of several together.
        """
        answer, question = whole.answers[0], self._analytics.question
        if not answer.is_mostly_bounded:
            return ""
        windows = range(whole.window, whole.window + whole.windows)
        bounds: dict[str, float] = {}
        for window in windows:
            for key, value in question.loosened(self._came(window)).items():
                extreme = min if key == "low" else max
                bounds[key] = extreme(value, bounds.get(key, value))
        if set(bounds) == {"most_keys"}:
            keys = np.array(answer.keys, np.int64)
            few, enough = question.model_dump()["most_keys"], int(bounds["most_keys"])
            while few + 1 < enough:
                middle = (few + enough) // 2
                is_enough = self._is_enough(middle, keys, windows)
                # With refused noise fewer keys must do.
                few, enough = (middle, enough) if is_enough is False else (few, middle)
            if not self._is_enough(enough, keys, windows):
                return ""
            bounds["most_keys"] = enough
        return " and ".join(f"{key}={value:g}" for key, value in bounds.items())

    def _is_enough(self, most_keys: int, keys: Int64Array, windows: range) -> bool | None:
        """Returns whether bounding to a number of keys changes the sums over windows at `keys`, in
        any order, no more than noise does; None if the scenario refuses it, as its noise is then
        too large for a sampler."""
        rounds, population = self._scenario.rounds, self._scenario.population
        override = f"analytics.question.most_keys={most_keys}"
        try:
            analytics = self._scenario.with_overrides(override).analytics
            assert analytics is not None
            plan = analytics.plans(rounds.least_accepted, population.devices)[0]
        except InputError:
            return None
        question, change, variance = analytics.question, np.zeros(keys.size), 0.0
        for window in windows:
            items = self._came(window)
            truth = question.truth(items, self._generator(window))
            change += _at(truth.keys, truth.bounded - truth.values, keys)
            variance += plan.sums.variance(items.devices)
        return root_mean_square(change) <= question.unit * math.sqrt(variance)

    def _came(self, window: int) -> Items:
        """Returns the values of the devices that came in a window."""
        if self._evaluated is not None:
            return self._evaluated.of_round(window)
        return of_rows(self._held, self._device_ids[window].astype(np.int64))

    def _window(self, window: int, start: float, end: float) -> WindowAnswer:
        came = np.zeros(self._members.size, np.bool_)
        came[self._device_ids[window]] = True
        present = self._devices.present(start, end) & self._members
        coverage = self._devices.coverage(present, came)
        items = self._came(window)
        of_came = self._truth(window, items)
        if self._evaluated is None:
            of_all = self._truth(window, of_rows(self._held, np.flatnonzero(present)))
        else:
            # It would take an evaluation on every device in every round.
            of_all = replace(of_came, values=np.full(of_came.keys.size, math.nan))
        is_additive = self._analytics.question.kind in ADDITIVE
        scale = coverage[0].devices / coverage[0].came if is_additive else 1.0
        return WindowAnswer(
            window=window,
            windows=1,
            pooling="",
            start_hours=start / 3600.0,
            end_hours=end / 3600.0,
            coverage=coverage,
            scale=scale,
            answers=tuple(
                self._answer(trust.kind, plan, window, items, of_came, of_all, scale)
                for trust, plan in zip(self._analytics.trust, self._plans, strict=True)
            ),
        )

    def _answer(
        self,
        trust: str,
        plan: Plan,
        window: int,
        items: Items,
        of_came: Truth,
        of_all: Truth,
        scale: float,
    ) -> TrustAnswer:
        found = plan.answer(items, self._generator(window), self._confidence)
        own = (found.estimates, found.standard_errors, found.low, found.high)
        exact = (
            (of_came.keys, of_came.bounded),
            (of_came.keys, of_came.values),
            (of_all.keys, of_all.values),
        )
        columns = np.stack([*own, *(_at(*each, found.keys) for each in exact)], axis=1)
        kind, keys = self._analytics.question.kind, found.keys.tolist()
        return answer_of_rows(
            trust,
            plan.mechanism,
            found.error_claim,
            found.confidence,
            [(key, self._label(key) if kind in BY_KEY else str(key)) for key in keys],
            columns,
            scale,
            float(of_all.values.sum()) if kind in ADDITIVE else math.nan,
        )

    def _truth(self, window: int, items: Items) -> Truth:
        return self._analytics.question.truth(items, self._generator(window))

    def _generator(self, window: int) -> np.random.Generator:
        # The same for the answer and the truth, which then bound contributions alike.
        return stream_generator(self._seed, Stream.ANSWER, window, *self._address)


def _at(keys: Int64Array, values: Float64Array, wanted: Int64Array) -> Float64Array:
    """Returns the values [W] at wanted keys [W]; 0 for a key that is not among `keys`, sorted."""
    if not keys.size:
        return np.zeros(wanted.size)
    places = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[places] == wanted, values[places], 0.0)


def _write(file: Path, document: dict[str, Any]) -> Path:
    write_whole(file, _json(document), f"answer {str(file)!r}", InputError)
    return file


def _json(document: dict[str, Any]) -> bytes:
    return f"{json.dumps(document, indent=1, allow_nan=False)}\n".encode()
