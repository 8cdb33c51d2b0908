"""The table `analytics`: a question that every upload window answers, the values of the devices,
and the trust models."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from fedray.base.errors import InputError
from fedray.base.mistakes import classes_in
from fedray.base.table import Share, Table, told_apart_by
from fedray.mechanisms.questions.added_noise import DiscreteGaussian
from fedray.mechanisms.questions.linear import Distinct, Histogram, Sum
from fedray.mechanisms.questions.numbers import Mean, Quantiles
from fedray.mechanisms.questions.open_domain import OpenHistogram, PrefixTree
from fedray.mechanisms.questions.question import Plan
from fedray.mechanisms.questions.registry import AnyQuestion, AnyTrust
from fedray.mechanisms.questions.trust import Budget
from fedray.scenario.content import PythonFile

__all__ = [
    "Analytics",
    "CustomValues",
    "EvaluationValues",
    "ExampleValues",
    "NumberValues",
    "WordValues",
    "needed_by_question",
]

Real = Annotated[float, Field(ge=-1e9, le=1e9)]


class ValueTable(Table):
    """The table of the values that devices hold; the key `kind` selects it."""

    implementation: ClassVar[str]
    """`module:name` of the values. Called with a scenario and this table, it returns a `Values`
    (clients/values/values.py)."""


class NumberValues(ValueTable):
    """One number per device: normal around a mean that may depend on the device's time zone and on
    how often it is eligible.

    Devices that come early are then unlike the others, so the coverage bias of an answer has a
    known cause.
    """

    kind: Literal["numbers"] = "numbers"
    """A number of each device, drawn."""
    implementation: ClassVar[str] = "fedray.clients.values.drawn:Numbers"
    mean: Real = 0.0
    """Mean over devices at UTC whose propensity to be eligible is the median one."""
    deviation: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    """Standard deviation between devices that are alike in zone and propensity."""
    per_zone_hour: Real = 0.0
    """Change of the mean per hour that the device's local time is ahead of UTC."""
    by_habit: Real = 0.0
    """Change of the mean from the device that is eligible least often to the one that is most
    often, linear in the quantile of the propensity; needs an availability with propensities."""


class WordValues(ValueTable):
    """A set of words per device, by a Zipf law: the probability of the word of rank r, from 0, is
    in proportion to (r + 1)^-exponent. Keys are numbers below `words`, spread so that neighbouring
    ranks have no prefix in common."""

    kind: Literal["words"] = "words"
    """Words of each device, drawn."""
    implementation: ClassVar[str] = "fedray.clients.values.drawn:Words"
    words: Annotated[int, Field(ge=1, le=1 << 24)] = 10_000
    """Number of different words."""
    exponent: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Exponent of the distribution."""
    per_device: Annotated[float, Field(gt=0, le=100)] = 5.0
    """Mean number of words drawn by a device (Poisson); a word that is drawn again counts once,
    with the number of draws as its value."""
    of_zone: Share = 0.0
    """Probability that a draw follows the ranking of the device's own time zone: h hours from UTC,
    it begins at rank h words / 24 of the common one, modulo `words`."""


class ExampleValues(ValueTable):
    """The tokens, or else the classes, of a device's training examples (table `data`), with the
    number of their occurrences as value. Recorded data needs a vocabulary file or a number of
    values, because a counted domain reveals the data of all devices without noise."""

    kind: Literal["examples"] = "examples"
    """Tokens or classes of the training data."""
    implementation: ClassVar[str] = "fedray.clients.values.examples:ExampleItems"
    most_examples: Annotated[int, Field(ge=1, le=1 << 20)] = 20
    """Number of examples of a device that are read, the first ones."""


class CustomValues(PythonFile, ValueTable):
    """The user's own values, from a Python file that imports all it needs.

    `values(device_ids, seed)` gets devices [N], uint64, and returns arrays (counts [N], keys [I],
    values [I]): the number of items of each device, then their keys (whole numbers) and values,
    device after device. It must be pure: a device has the same items in every call.
    """

    kind: Literal["custom"] = "custom"
    """The user's own values."""
    implementation: ClassVar[str] = "fedray.clients.values.custom:CustomItems"
    table: ClassVar[str] = "analytics.values"


class EvaluationValues(ValueTable):
    """The metric of a task's model on a device's own examples: federated evaluation, as one of
    several tasks. The devices of a round evaluate the newest model that was committed before the
    round started."""

    kind: Literal["evaluation"] = "evaluation"
    """The metric of another task's model."""
    # Called with the trace too, since the values are there; see `runs.answers`.
    implementation: ClassVar[str] = "fedray.runs.evaluated:EvaluatedModel"
    of: Annotated[str, Field(min_length=1, max_length=80)]
    """Name of the task whose model is evaluated."""
    metric: str = "loss"
    """Metric of the device, one of those of the task's training.task."""
    most_examples: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    """Number of examples of a device that are used, the first ones."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the devices, drawn by the seed, that evaluate and never train the evaluated task;
    all others never evaluate. 0: every device may do both. It sets participation.members of both
    tasks."""
    low: Real = 0.0
    """Lower end of the first bin of a histogram; smaller values are counted in it."""
    high: Real = 1.0
    """Upper end of the last bin; larger values are counted in it."""

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        if self.low >= self.high:
            raise InputError.of("low", self.low, f"is not below high={self.high:g}", "lower it")
        return self


AnyValues = Annotated[
    Annotated[NumberValues, Tag("numbers")]
    | Annotated[WordValues, Tag("words")]
    | Annotated[ExampleValues, Tag("examples")]
    | Annotated[CustomValues, Tag("custom")]
    | Annotated[EvaluationValues, Tag("evaluation")],
    told_apart_by("kind", "numbers"),
]
"""Tables of all kinds of values, distinguished by `kind`."""


class Analytics(Table):
    """A question to the devices of every upload window, at the same privacy under each trust
    model."""

    question: AnyQuestion
    """Table: the question; its `kind` and the bounds on a device's contribution."""
    values: AnyValues = NumberValues()
    """Table: the values of a device; its `kind` is numbers (default), words, examples, custom or
    evaluation."""
    trust: Annotated[tuple[AnyTrust, ...], Field(strict=False, min_length=1)]
    """Tables: who must be trusted, each with a `kind`. The trust models answer side by side, each
    for the whole budget: a deployment has one of them."""
    epsilon: float
    """Epsilon that a device may spend in a window."""
    delta: float = 0.0
    """Delta of epsilon."""

    @property
    def budget(self) -> Budget:
        """Privacy that one device may spend in one window."""
        return Budget(self.epsilon, self.delta)

    def plans(self, least_devices: int, most_devices: int | None = None) -> tuple[Plan, ...]:
        """Returns the calibrated mechanism of every trust model.

        Args:
            least_devices: smallest number of devices of a window.
            most_devices: largest number; None leaves the limits of samplers unchecked.

        Raises:
            InputError: no theorem answers the question under a trust model, one is calibrated for
                more devices, or its noise is too large.
        """
        plans = tuple(self.question.plan(trust, self.budget) for trust in self.trust)
        for trust, plan in zip(self.trust, plans, strict=True):
            if plan.least_devices > least_devices:
                raise InputError.of(
                    f"analytics.trust {trust.kind}: least_devices",
                    plan.least_devices,
                    f"is more than the {least_devices:,} devices that a window may have",
                    "raise rounds.report_goal, below which a window is not answered",
                )
            if most_devices is not None and isinstance(plan.sums, DiscreteGaussian):
                plan.sums.check_deviation(most_devices)
        return plans

    @model_validator(mode="after")
    def _words_are_keys(self) -> Self:
        match self.question:
            case Histogram(size=end) | Sum(size=end):
                pass
            case PrefixTree(branching=branching, levels=levels):
                end = branching**levels
            case _:
                return self
        if isinstance(self.values, WordValues) and self.values.words > end:
            raise InputError.of(
                "values.words",
                self.values.words,
                f"is more than the {end:,} keys of the question",
                "lower it, or enlarge the question's domain",
            )
        return self

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        counts_keys = isinstance(self.question, Histogram | OpenHistogram | PrefixTree | Distinct)
        if counts_keys and isinstance(self.values, NumberValues):
            rule = f"is a number at key 0 of every device, and {self.question.kind} counts keys"
            remedy = "use words, examples or custom"
            raise InputError.of("values.kind", self.values.kind, rule, remedy)
        return self

    @model_validator(mode="after")
    def _evaluation_is_a_number(self) -> Self:
        is_number = isinstance(self.question, Mean | Quantiles | Histogram)
        if isinstance(self.values, EvaluationValues) and not is_number:
            rule = "does not ask about the number that an evaluation is"
            remedy = "use mean, quantiles or histogram"
            raise InputError.of("question.kind", self.question.kind, rule, remedy)
        return self

    @model_validator(mode="after")
    def _trust_models_differ(self) -> Self:
        _ = self.budget  # refuses an epsilon or delta that no mechanism is calibrated to
        if len(set(self.trust)) < len(self.trust):
            raise ValueError("trust: a trust model is given twice; leave one out")
        return self


def needed_by_question(tables: Mapping[str, Any]) -> dict[str, str]:
    """Returns the keys that the question of a scenario needs and its tables lack, each with an
    example in TOML; empty without the table `analytics`.

    Validation finds them one table after the other. Together they are one refusal of a first
    question, and the examples fit each other.

    Args:
        tables: tables of a scenario, as a parser returns them.
    """
    asked = tables.get("analytics")
    if not isinstance(asked, Mapping):
        return {}
    found = dict(_needed_of_analytics(asked, _table(tables, "rounds")))
    if _kind(_table(asked, "values")) != "evaluation":
        found |= _needed_of_rounds(tables)
    return {key: f"{key.rpartition('.')[2]} = {value}" for key, value in found.items()}


def _needed_of_analytics(
    asked: Mapping[str, Any], rounds: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    question, values = _table(asked, "question"), _table(asked, "values")
    kind = _kind(question) or "histogram"
    words = values.get("words", 10_000) if _kind(values) == "words" else 16
    size = question.get("size", words)
    if "kind" not in question:
        yield "analytics.question", f'{{ kind = "histogram", size = {size} }}'
    for each in classes_in(AnyQuestion):
        fields = each.model_fields
        # A kind that does not exist is refused as such.
        if fields["kind"].default == _kind(question):
            required = (name for name, field in fields.items() if field.is_required())
            for name in required:
                if name not in question:
                    example = size if name == "size" else (fields[name].examples or [1])[0]
                    yield f"analytics.question.{name}", str(example)
    if kind in ("histogram", "open_histogram", "prefix_tree", "distinct") and "values" not in asked:
        yield "analytics.values", f'{{ kind = "words", words = {size} }}'
    # By default there are more words than a small domain has keys.
    if kind in ("histogram", "sum") and _kind(values) == "words" and "words" not in values:
        yield "analytics.values.words", f"{question.get('size', words)}"
    trusts = asked.get("trust")
    if trusts is None:
        yield "analytics.trust", '[{ kind = "server" }]'
    # Noise of discrete Gaussians and shuffling need a delta, and count on a number of devices.
    counting = {
        place: each
        for place, each in enumerate(trusts if isinstance(trusts, list | tuple) else ())
        if isinstance(each, Mapping) and _kind(each) in ("devices", "shuffled")
    }
    for place, each in counting.items():
        if "least_devices" not in each:
            least = rounds.get("report_goal", 1000)
            yield f"analytics.trust.{place}.least_devices", f"{least}"
    if "epsilon" not in asked:
        yield "analytics.epsilon", "1.0"
    if "delta" not in asked and (counting or kind == "open_histogram"):
        yield "analytics.delta", "1e-8"


def _needed_of_rounds(tables: Mapping[str, Any]) -> dict[str, str]:
    rounds = _table(tables, "rounds")
    uploads = _table(rounds, "uploads")
    count = rounds.get("count", 1)
    of_uploads = {"window_hours": "24", "schedule": '{ kind = "all" }'}
    if isinstance(count, int) and count != 1:
        of_uploads["windows"] = f"{count}"
    of_rounds = {"mode": '"upload-then-train"', "count": "1", "report_goal": "1000"}
    of_rounds["uploads"] = _inline(of_uploads)
    if "rounds" not in tables:
        return {"rounds": _inline(of_rounds)}
    if "uploads" in rounds:
        del of_rounds["uploads"]
        of_rounds |= {
            f"uploads.{key}": each for key, each in of_uploads.items() if key not in uploads
        }
    return {f"rounds.{key}": each for key, each in of_rounds.items() if key not in rounds}


def _table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = tables.get(key)
    return found if isinstance(found, Mapping) else {}


def _kind(table: Mapping[str, Any]) -> str:
    # Python may pass values that cannot be compared, such as arrays.
    return kind if isinstance(kind := table.get("kind"), str) else ""


def _inline(examples: Mapping[str, str]) -> str:
    return f"{{ {', '.join(f'{key} = {value}' for key, value in examples.items())} }}"
