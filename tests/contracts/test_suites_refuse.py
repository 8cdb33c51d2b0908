"""The suites of tasks and of data refuse what is wrong: for every law, something that breaks it."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import data_contract as of_data
import numpy as np
import pytest
import task_contract as of_tasks
import torch
from small_tasks import CASES, EXAMPLES, TEXT, VECTORS, RandomExamples, made

import fedray
from fedray.base.errors import InputError, ScenarioError
from fedray.clients.data.source import FIRST_HELD_OUT, Field
from fedray.wire.messages import Metric

Change = Callable[[Any], dict[str, Any]]
"""What is wrong: attributes by name, for the right task or source that they replace them in."""


def losses(change: Callable[..., torch.Tensor]) -> Change:
    """A task whose losses are `change(right losses, parameters, batch)`."""
    return lambda right: {"losses": lambda own, batch: change(right.losses, own, batch)}


def measures(name: str, change: Callable[..., Any]) -> Change:
    """A task that changes numerators and weights of one metric."""

    def of_right(right) -> dict[str, Any]:
        def measure(own, batch):
            found = right.measure(own, batch)
            return {**found, name: change(*found[name])}

        return {"measure": measure}

    return of_right


def metrics(*changed: Metric) -> Change:
    return lambda right: {"metrics": changed}


def initial(change: Callable[..., Any]) -> Change:
    return lambda right: {"initial_parameters": lambda: change(right.initial_parameters())}


def examples_of(batch: Mapping[str, torch.Tensor], part: slice) -> dict[str, torch.Tensor]:
    return {name: values[:, part] for name, values in batch.items()}


def remembering(right) -> dict[str, Any]:
    calls = []

    def counted(own, batch):
        calls.append(1)
        return right.losses(own, batch) + 0.1 * len(calls)

    return {"losses": counted}


def with_one_memory(right) -> dict[str, Any]:
    kept = right.initial_parameters()
    return {"initial_parameters": lambda: kept}


def written_into(right_losses, own, batch):
    batch["inputs"].add_(1.0)
    return right_losses(own, batch)


LOSS, ACCURACY = Metric("loss", "", "lower"), Metric("accuracy", "share", "higher")
SHAPES = of_tasks.check_shapes_lay_out_the_parameters
SEED = of_tasks.check_a_task_is_a_function_of_its_seed
GIVEN = of_tasks.check_what_a_task_is_given_stays_as_it_is
GROUP = of_tasks.check_losses_do_not_depend_on_the_group
SLOPES = of_tasks.check_gradients_are_slopes
MEANS = of_tasks.check_losses_are_means_over_examples
DEPEND = of_tasks.check_losses_depend_on_parameters_and_examples
MEASURES = of_tasks.check_measures_are_finite
SINGLE = of_tasks.check_measures_are_of_single_examples
CALLED = of_tasks.check_metrics_are_what_they_are_called
SAME = of_tasks.check_the_metric_loss_is_the_loss
WRONG_TASKS: dict[str, tuple[Any, str, Change]] = {
    "one parameter too many": (
        SHAPES, "has shape", initial(lambda flat: np.append(flat, np.float32(0)))
    ),
    "parameters in float64": (SHAPES, "float64", initial(lambda flat: flat.astype(np.float64))),
    "parameters that are no numbers": (SHAPES, "not finite", initial(lambda flat: flat * np.nan)),
    "parameters drawn from nowhere": (
        SEED, "draw from the seed",
        initial(lambda flat: np.random.default_rng().random(flat.size, np.float32)),
    ),
    "parameters that a caller can write into": (SEED, "writes into them", with_one_memory),
    "a loss that remembers": (SEED, "remember nothing", remembering),
    "a loss that draws": (
        SEED, "losses", losses(lambda right, own, batch: right(own, batch) + torch.rand(()))
    ),
    "a measure that draws": (
        SEED, "'accuracy'",
        measures("accuracy", lambda above, below: (above * torch.rand(above.shape), below)),
    ),
    "examples that are changed": (GIVEN, "'inputs'", losses(written_into)),
    "a mean over the group": (
        GROUP, "no sum or mean over the first axis",
        losses(lambda right, own, batch: right(own, batch).mean().expand(len(batch["targets"]))),
    ),
    "one device's model for all": (
        GROUP, "row g",
        losses(lambda right, own, batch: right(
            {name: part[:1].expand_as(part) for name, part in own.items()}, batch
        )),
    ),
    "a loss per example": (
        GROUP, "one loss per device",
        losses(lambda right, own, batch: right(own, batch)[:, None].expand(-1, 4)),
    ),
    "a loss that is infinite": (
        GROUP, "0 / 0", losses(lambda right, own, batch: right(own, batch) / 0.0)
    ),
    "a norm whose gradient at zero is none": (
        GROUP, "the gradient of 'bias' at the initial",
        losses(lambda right, own, batch: right(own, batch) + own["bias"].square().sum(1).sqrt()),
    ),
    "a parameter that is detached": (
        SLOPES, "no `detach`",
        losses(lambda right, own, batch: right({**own, "bias": own["bias"].detach()}, batch)),
    ),
    "a sum in place of a mean": (
        MEANS, "`mean`", losses(lambda right, own, batch: right(own, batch) * batch["targets"].shape[1])
    ),
    "a sum of squares over n - 1": (
        MEANS, "twice",
        losses(lambda right, own, batch: right(own, batch) * (n := batch["targets"].shape[1]) / max(1, n - 1)),
    ),
    "a loss that looks at the order": (
        MEANS, "backwards",
        # The first and the last example are the same ones when a batch comes twice.
        losses(lambda right, own, batch: right(own, batch)
               + 0.1 * right(own, examples_of(batch, slice(0, 1)))
               - 0.1 * right(own, examples_of(batch, slice(-1, None)))),
    ),
    "a loss that compares examples": (
        MEANS, "outside of which no mean is",
        losses(lambda right, own, batch: right(own, batch)
               + 10 * batch["inputs"].var(dim=1, correction=0).mean(dim=(1, 2))),
    ),
    "a loss without parameters": (
        DEPEND, "every gradient is zero",
        losses(lambda right, own, batch: 0 * own["bias"].sum(1) + batch["inputs"].mean((1, 2, 3))),
    ),
    "a loss without examples": (
        DEPEND, "must depend on the examples",
        losses(lambda right, own, batch: own["bias"].square().sum(1)),
    ),
    "a metric that is missing": (MEASURES, "`metrics` names", metrics(LOSS, ACCURACY, Metric("f1", "", "higher"))),
    "a metric per device": (
        MEASURES, "one per example", measures("accuracy", lambda above, below: (above.mean(1), below.mean(1)))
    ),
    "a numerator that is no number": (
        MEASURES, "numerators of 'loss'", measures("loss", lambda above, below: (above / 0, below))
    ),
    "a negative weight": (MEASURES, "has weight -1", measures("loss", lambda above, below: (above, -below))),
    "no weight at all": (MEASURES, "weight 0 for all", measures("accuracy", lambda above, below: (0 * above, 0 * below))),
    "a numerator without weight": (
        MEASURES, "examples of weight 0",
        measures("loss", lambda above, below: (above, below * (torch.arange(4) > 0))),
    ),
    "a metric of the batch": (
        SINGLE, "numerator of 'accuracy'",
        measures("accuracy", lambda above, below: (above.mean(dim=1, keepdim=True).expand_as(above), below)),
    ),
    "a weight of the batch": (
        SINGLE, "weight of 'accuracy'",
        measures("accuracy", lambda above, below: (above, below / above.shape[1])),
    ),
    "an accuracy in percent": (CALLED, "a share", measures("accuracy", lambda above, below: (100 * above, below))),
    "a negative share": (CALLED, "a share", measures("accuracy", lambda above, below: (above - 1, below))),
    "a loss to be raised": (CALLED, "better='lower'", metrics(Metric("loss", "", "higher"), ACCURACY)),
    "an accuracy to be lowered": (CALLED, "better='higher'", metrics(LOSS, Metric("accuracy", "", "lower"))),
    "a metric loss of another size": (
        SAME, "weigh examples in both alike", measures("loss", lambda above, below: (2 * above, below))
    ),
    "a metric loss of weighted examples": (
        SAME, "weigh examples in both alike",
        measures("loss", lambda above, below: (above * above, above)),
    ),
}  # fmt: skip
"""Each with the check that refuses it, and what that says."""


def wrong_task(change: Change) -> of_tasks.MakeTask:
    def make(seed: int) -> Any:
        table, fields = CASES["logistic"]
        right = made(table, fields, seed)
        attributes = {
            name: getattr(right, name)
            for name in ("shapes", "metrics", "initial_parameters", "losses", "measure")
        }
        return SimpleNamespace(**{**attributes, **change(right)}), RandomExamples(fields)

    return make


@pytest.mark.parametrize("name", WRONG_TASKS)
def test_a_wrong_task_is_refused(name: str) -> None:
    check, says, change = WRONG_TASKS[name]
    with pytest.raises(AssertionError, match=says):
        check(wrong_task(change))


@pytest.mark.parametrize("name", WRONG_TASKS)
def test_the_check_for_users_refuses_it_too(name: str) -> None:
    _, _, change = WRONG_TASKS[name]
    with pytest.raises(AssertionError, match=" must | is a share"):
        fedray.check_task(wrong_task(change))


def test_every_check_of_tasks_refuses_something_and_takes_what_is_right() -> None:
    assert {check for check, _, _ in WRONG_TASKS.values()} == set(of_tasks.CHECKS)
    for check in of_tasks.CHECKS:
        check(wrong_task(lambda right: {}))


def test_a_mean_over_words_with_a_weight_per_text_is_refused() -> None:
    """The loss is over words; the metric would count a short text as much as a long one."""
    table, fields = CASES["keyboard_lstm"]

    def make(seed: int):
        right = made(table, fields, seed)
        measure = right.measure

        def per_text(own, batch):
            found = measure(own, batch)
            sums, words = found["loss"]
            return {**found, "loss": (sums / words, torch.ones_like(sums))}

        right.measure = per_text
        return right, RandomExamples(fields)

    with pytest.raises(AssertionError, match="sums over the words"):
        SAME(make)


def test_a_task_without_examples_for_the_suite_is_told_so() -> None:
    def make(seed: int):
        task, source = wrong_task(lambda right: {})(seed)
        source.examples_on = lambda device_ids: np.zeros(device_ids.size, np.int64)
        return task, source

    with pytest.raises(AssertionError, match=r"devices \[0, 1, 7"):
        MEANS(make)


def test_a_task_without_data_is_refused() -> None:
    with pytest.raises(AssertionError, match="must return data too"):
        fedray.check_task(lambda seed: (made(*CASES["logistic"], seed), None))


def test_losses_without_gradients_are_named_as_the_mistake() -> None:
    change = losses(lambda right, own, batch: right(own, batch).detach())
    with pytest.raises(ScenarioError, match="losses have no gradients"):
        SLOPES(wrong_task(change))


def gives(change: Callable[..., Any], fields: Mapping[str, Field] = VECTORS) -> Callable:
    """A source whose examples are `change(right examples, device ids, positions)`."""

    def make():
        source = RandomExamples(fields)
        right = source.examples
        source.examples = lambda ids, positions: change(right, ids, positions)  # pyright: ignore[reportAttributeAccessIssue]
        return source

    return make


def field(name: str, change: Callable[..., Any], fields: Mapping[str, Field] = VECTORS) -> Callable:
    """A source that changes the values of one field."""

    def changed(right, ids, positions):
        found = right(ids, positions)
        return {**found, name: change(found[name])}

    return gives(changed, fields)


def has(**attributes: Any) -> Callable:
    def make():
        source = RandomExamples(VECTORS)
        vars(source).update(attributes)
        return source

    return make


def drawn_on_every_read() -> RandomExamples:
    draws = np.random.default_rng(1)

    def noisy(right, ids, positions):
        found = right(ids, positions)
        noise = draws.standard_normal(found["inputs"].shape, np.float32)
        return {**found, "inputs": found["inputs"] + noise}

    return gives(noisy)()


def read_counts() -> RandomExamples:
    """What changes with the first read of the same address alone."""
    read: set[int] = set()

    def changed(right, ids, positions):
        found = right(ids, positions)
        again = np.array([each in read for each in ids.tolist()], np.float32)
        read.update(ids.tolist())
        return {**found, "inputs": found["inputs"] + again[:, None, None, None]}

    return gives(changed)()


def of_one_memory() -> RandomExamples:
    kept: dict[bytes, Any] = {}

    def remembered(right, ids, positions):
        key = ids.tobytes() + positions.tobytes()
        if key not in kept:
            kept[key] = right(ids, positions)
        return kept[key]

    return gives(remembered)()


def moving_positions(right, ids, positions):
    found = right(ids, positions)
    positions[...] = 0
    return found


def growing() -> RandomExamples:
    source = RandomExamples(VECTORS)
    right, reads = source.examples, []

    def examples(ids, positions):
        reads.append(1)
        return right(ids, positions)

    source.examples = examples  # pyright: ignore[reportAttributeAccessIssue]
    source.examples_on = lambda ids: np.full(ids.size, EXAMPLES - bool(reads), np.int64)  # pyright: ignore[reportAttributeAccessIssue]
    return source


def other_fields() -> RandomExamples:
    classes = int(np.random.default_rng().integers(3, 2**40))
    return RandomExamples({**VECTORS, "targets": Field((), "whole", classes)})


def held_out_only(change: Callable[..., Any]) -> Callable:
    def changed(right, ids, positions):
        found = right(ids, positions)
        return change(found) if (ids >= FIRST_HELD_OUT).any() else found

    return gives(changed)


def counts(change: Callable[..., Any]) -> Callable:
    return has(examples_on=change)


FIELDS = of_data.check_fields_say_what_examples_are
FORM = of_data.check_examples_have_the_shapes_and_kinds_of_their_fields
BELONG = of_data.check_examples_belong_to_the_device
STAY = of_data.check_examples_stay_the_same
COUNTS = of_data.check_counts_belong_to_the_device
HELD_OUT = of_data.check_held_out_devices_have_examples
NO_DEVICE = of_data.check_held_out_data_is_of_no_device
WRONG_SOURCES: dict[str, tuple[Any, str, Callable]] = {
    "no fields": (FIELDS, "is empty", has(fields={})),
    "classes without their number": (FIELDS, "set `values`", has(fields={"targets": Field((), "whole")})),
    "padding outside the tokens": (FIELDS, "padding 11", has(fields={"tokens": Field((7,), "whole", 11, padding=11)})),
    "another kind": (FIELDS, "'real' or 'whole'", has(fields={"x": Field((), "complex")})),  # pyright: ignore[reportArgumentType]
    "fields that change": (FIELDS, "in a second source", other_fields),
    "an optimum that is none": (FIELDS, "leave out", has(optimum={"loss": np.nan})),
    "a field that is missing": (FORM, "names", gives(lambda right, ids, positions: {"inputs": right(ids, positions)["inputs"]})),
    "another shape": (FORM, "of shape", field("inputs", lambda part: part[..., :1])),
    "another type of number": (FORM, "as float64", field("inputs", lambda part: part.astype(np.float64))),
    "a class too high": (FORM, "0 to 2", field("targets", lambda part: part + 1)),
    "a class below zero": (FORM, "from -1", field("targets", lambda part: part - 1)),
    "numbers that are none": (FORM, "not finite", field("inputs", np.log)),
    "padding first": (FORM, "before other tokens", field("tokens", lambda part: part[..., ::-1].copy(), TEXT)),
    "a text of padding": (FORM, "only padding", field("tokens", lambda part: 0 * part, TEXT)),
    "examples of the group": (
        BELONG, "differ between a source asked",
        gives(lambda right, ids, positions: right(np.sort(ids), positions) if ids[0] else right(ids + ids.sum(), positions)),
    ),
    "examples of the place in the batch": (
        BELONG, "asked for by itself",
        gives(lambda right, ids, positions: right(ids, positions if positions.shape[1] > 1 else (positions + 1) % EXAMPLES)),
    ),
    "examples in the order of positions": (
        BELONG, "backwards", gives(lambda right, ids, positions: right(ids, np.sort(positions, axis=1)))
    ),
    "examples drawn on every read": (STAY, "asked for again", drawn_on_every_read),
    "examples that differ the second time": (STAY, "asked for again", read_counts),
    "examples that a caller can write into": (STAY, "gives copies", of_one_memory),
    "positions that are changed": (STAY, "its device_ids or positions", gives(moving_positions)),
    "counts that change": (STAY, "and is", growing),
    "a count for all": (COUNTS, "one count each", counts(lambda ids: np.array([EXAMPLES]))),
    "counts that are reals": (COUNTS, "float64", counts(lambda ids: np.full(ids.size, 1.0))),
    "counts below zero": (COUNTS, "from 0", counts(lambda ids: np.full(ids.size, -1))),
    "counts beyond 32 bits": (COUNTS, r"2\^32", counts(lambda ids: np.full(ids.size, 2**32))),
    "counts of the group": (COUNTS, "one by one", counts(lambda ids: np.full(ids.size, min(ids.size, EXAMPLES)))),
    "a count too high": (COUNTS, "every position below", counts(lambda ids: np.full(ids.size, EXAMPLES + 1))),
    "nothing held out": (HELD_OUT, "`held_out_devices` is 0", has(held_out_devices=0)),
    "held-out devices without examples": (
        HELD_OUT, "none of the first", counts(lambda ids: np.where(ids < FIRST_HELD_OUT, EXAMPLES, 0))
    ),
    "held-out data of another form": (
        HELD_OUT, "from 5", held_out_only(lambda found: {**found, "targets": 0 * found["targets"] + 5})
    ),
    "held-out data of devices": (
        NO_DEVICE, "id % n", gives(lambda right, ids, positions: right(ids % np.uint64(50), positions))
    ),
}  # fmt: skip
"""Each with the check that refuses it, and what that says."""


@pytest.mark.parametrize("name", WRONG_SOURCES)
def test_wrong_data_is_refused(name: str) -> None:
    check, says, make = WRONG_SOURCES[name]
    with pytest.raises(AssertionError, match=says), np.errstate(invalid="ignore"):
        check(make)


ONLY_IN_THE_SUITE = {
    "classes without their number",
    "another kind",
    "an optimum that is none",
    "a field that is missing",
    "examples that a caller can write into",
}
"""What training refuses by itself, or does not come across."""


@pytest.mark.parametrize("name", sorted(WRONG_SOURCES.keys() - ONLY_IN_THE_SUITE))
def test_the_check_for_users_refuses_wrong_data_too(name: str) -> None:
    _, _, make = WRONG_SOURCES[name]
    with pytest.raises((AssertionError, IndexError)), np.errstate(invalid="ignore"):
        fedray.check_task(lambda seed: (None, make()))


@pytest.mark.parametrize("name", CASES)
def test_the_check_for_users_takes_every_task_that_ships(name: str) -> None:
    """Only the metric `loss` of a quadratic with curvatures is another loss on purpose."""
    table, fields = CASES[name]
    if name == "quadratic":
        with pytest.raises(AssertionError, match="the metric `loss` must weigh"):
            fedray.check_task(lambda seed: (made(table, fields, seed), RandomExamples(fields)))
        return
    fedray.check_task(lambda seed: (made(table, fields, seed), RandomExamples(fields)))


def test_every_check_of_data_refuses_something_and_takes_what_is_right() -> None:
    assert {check for check, _, _ in WRONG_SOURCES.values()} == set(of_data.CHECKS)
    for check in of_data.CHECKS:
        for fields in (VECTORS, TEXT):
            check(lambda fields=fields: RandomExamples(fields))


class Asked(RandomExamples):
    """Examples of the first devices only, such as those of a dictionary of clients."""

    def __init__(self, devices: int, held_out: int) -> None:
        super().__init__(VECTORS)
        self.known = {*range(devices), *range(int(FIRST_HELD_OUT), int(FIRST_HELD_OUT) + held_out)}
        self.asked: set[int] = set()

    def _of(self, device: int):
        if device not in self.known:
            raise KeyError(device)
        self.asked.add(device)
        return super()._of(device)


@pytest.mark.parametrize(("devices", "held_out"), [(2, 1), (3, 20), (100, 10), (10_000, 3)])
def test_the_check_asks_only_for_the_devices_that_there_are(devices: int, held_out: int) -> None:
    made_sources: list[Asked] = []

    def make(seed: int):
        made_sources.append(Asked(devices, held_out))
        return made(*CASES["logistic"], seed), made_sources[-1]

    fedray.check_task(make, devices=devices, held_out_devices=held_out)
    asked = made_sources[0].asked
    assert {0, devices - 1, int(FIRST_HELD_OUT) + held_out - 1} <= asked
    with pytest.raises(KeyError, match=r"\d+"):
        fedray.check_task(make)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"devices": 1}, r"devices=1 must be at least 2; raise it, or leave it out"),
        ({"held_out_devices": 0}, r"held_out_devices=0 must be at least 1; raise it"),
    ],
)
def test_a_number_of_devices_that_is_too_small_is_refused(given, says: str) -> None:
    with pytest.raises(InputError, match=says):
        fedray.check_task(wrong_task(lambda right: {}), **given)


def test_wrong_tasks_are_refused_on_few_devices_too() -> None:
    for name in ("no weight at all", "a negative weight", "a negative share"):
        with pytest.raises(AssertionError, match=" must | is a share"):
            fedray.check_task(wrong_task(WRONG_TASKS[name][2]), devices=2, held_out_devices=1)


class WithRare(RandomExamples):
    """Examples of class 0 and 1, but for the last example of one device, which has class 2."""

    def __init__(self, device: int) -> None:
        super().__init__(VECTORS)
        self.device = device

    def _of(self, device: int):
        found = super()._of(device)
        found["targets"] %= 2
        if device == self.device:
            found["targets"][-1] = 2
        return found


def recall(change: Callable[..., Any]) -> Callable[[int], Callable[[int], Any]]:
    """Makes of the device with the rare example, whose metric is changed."""

    def of(device: int) -> Callable[[int], Any]:
        def make(seed: int):
            right = made(*CASES["logistic"], seed)
            metrics = (*right.metrics, Metric("rare_recall", "share", "higher"))

            def measure(own, batch):
                found, is_rare = right.measure(own, batch), (batch["targets"] == 2).double()
                hits = found["accuracy"][0].double() * is_rare
                return {**found, "rare_recall": change(hits, is_rare)}

            names = ("shapes", "initial_parameters", "losses")
            task = {name: getattr(right, name) for name in names}
            return SimpleNamespace(**task, metrics=metrics, measure=measure), WithRare(device)

        return make

    return of


@pytest.mark.parametrize("device", [7, 150])
def test_a_metric_of_rare_examples_is_checked_on_a_device_that_has_one(device: int) -> None:
    fedray.check_task(recall(lambda hits, weights: (hits, weights))(device))
    with pytest.raises(AssertionError, match="'rare_recall' is a share"):
        fedray.check_task(recall(lambda hits, weights: (hits + 2 * weights, weights))(device))
    with pytest.raises(AssertionError, match="finite numerator"):
        fedray.check_task(recall(lambda hits, weights: (hits, -weights))(device))


@pytest.mark.parametrize("given", [{}, {"devices": 100}])
def test_a_metric_without_any_example_is_told_so_with_the_remedy(given) -> None:
    count = min(200, given.get("devices", 200))
    says = (
        "'rare_recall' must have a weight above 0 for some example, but no example of the sample "
        rf"has a weight \({count * EXAMPLES:,} of the first {count} devices, at most 100 of each\); "
        "correct the weights that measure"
    )
    with pytest.raises(AssertionError, match=says):
        fedray.check_task(recall(lambda hits, weights: (hits, weights))(300), **given)
