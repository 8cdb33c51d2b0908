"""Models of text: sizes that the literature states, twins in torch's own layers, padding, metrics."""

import math

import numpy as np
import pytest
import torch
from small_tasks import TEXT, batch_of, made, parameters_of
from torch import nn

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import Field
from fedray.clients.tasks import text
from fedray.clients.tasks.layout import named, size_of
from fedray.scenario.tasks import KeyboardLstmTask

MODELS = {
    "cifg": KeyboardLstmTask(hidden=6, embedding=4),
    "lstm": KeyboardLstmTask(hidden=6, embedding=4, cell="lstm", tied=True),
    "unit": KeyboardLstmTask(
        hidden=6, embedding=4, cell="lstm", tied=True, unit_embeddings=True, top=(3, 2), head=4
    ),
    "deep": KeyboardLstmTask(hidden=6, embedding=4, cell="lstm", layers=3, projected=False),
}
EACH = pytest.mark.parametrize("table", MODELS.values(), ids=MODELS)


@pytest.mark.parametrize(
    ("table", "words", "parameters"),
    [
        (KeyboardLstmTask(), 10_000, 2_382_250),
        (KeyboardLstmTask(tied=True), 10_000, 1_412_250),  # 1.4 M: Hard et al. 2018
        (KeyboardLstmTask(cell="lstm", hidden=256, tied=True), 10_000, 1_346_144),
        (KeyboardLstmTask(cell="lstm"), 10_004, 4_050_748),  # Keras's summary
        # 256 * (8 + 256 + 1) * 4 + 256 * (256 + 256 + 1) * 4 + 90 * (8 + 256 + 1): Reddi et al. 2021.
        (
            KeyboardLstmTask(cell="lstm", hidden=256, embedding=8, layers=2, projected=False),
            90,
            820_522,
        ),
    ],
)
def test_sizes_are_those_of_the_literature(table, words: int, parameters: int) -> None:
    fields = {"tokens": Field((21,), "whole", words, padding=0, unknown=1)}
    assert size_of(made(table, fields).shapes) == parameters


def _loaded(module: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, value in values.items():
        module.get_parameter(name).data = value.detach().clone()


def _nats_of_lstm(own: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Logits by torch's LSTM, whose gates are input, forget, candidate, output."""
    units, width = own["recurrent"].shape[0], own["embedding"].shape[1]
    order = torch.arange(4 * units).view(4, units)[[1, 2, 3, 0]].flatten()
    layer = nn.LSTM(width, units, batch_first=True)
    weights = {"weight_ih_l0": own["input"].T[order], "weight_hh_l0": own["recurrent"].T[order]}
    biases = {"bias_ih_l0": own["gate_bias"][order], "bias_hh_l0": torch.zeros(4 * units)}
    _loaded(layer, weights | biases)
    states, _ = layer(own["embedding"][inputs])
    return (states @ own["projection"] + own["projection_bias"]) @ own["embedding"].T


def _nats_of_unit_lstm(own: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Logits by torch's LSTM of embeddings divided by their norms, on both sides."""
    norms = own["embedding"].square().sum(dim=1, keepdim=True).sqrt()
    return _nats_of_lstm({**own, "embedding": own["embedding"] / norms}, inputs)


def _nats_of_deep_lstm(own: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Logits by torch's LSTM of three layers, which the output layer reads as they are."""
    units, width = own["recurrent"].shape[0], own["embedding"].shape[1]
    order = torch.arange(4 * units).view(4, units)[[1, 2, 3, 0]].flatten()
    layers = nn.LSTM(width, units, 3, batch_first=True)
    values: dict[str, torch.Tensor] = {}
    for layer, suffix in enumerate(("", "_2", "_3")):
        values[f"weight_ih_l{layer}"] = own[f"input{suffix}"].T[order]
        values[f"weight_hh_l{layer}"] = own[f"recurrent{suffix}"].T[order]
        values[f"bias_ih_l{layer}"] = own[f"gate_bias{suffix}"][order]
        values[f"bias_hh_l{layer}"] = torch.zeros(4 * units)
    _loaded(layers, values)
    states, _ = layers(own["embedding"][inputs])
    return states @ own["output"].T + own["output_bias"]


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("lstm", _nats_of_lstm),
        ("unit", _nats_of_unit_lstm),
        ("deep", _nats_of_deep_lstm),
    ],
)
@pytest.mark.parametrize("scores_at_once", [1 << 23, 40])
def test_loss_and_metrics_are_those_of_a_plain_model(
    name: str, twin, scores_at_once: int, monkeypatch
) -> None:
    """Word by word, in torch's own layers; metrics are also right when they are made in parts."""
    monkeypatch.setattr(text, "SCORES_AT_ONCE", scores_at_once)
    task = made(MODELS[name], TEXT)
    batch, parameters = batch_of(TEXT), parameters_of(task)
    losses = task.losses(parameters, batch)
    with torch.no_grad():
        measured = task.measure(parameters, batch)
    seen = {"padding": 0, "unknown": 0}
    for device in range(3):
        own = {part: value[device] for part, value in parameters.items()}
        tokens = batch["tokens"][device]
        log_shares = twin(own, tokens[:, :-1]).detach().log_softmax(dim=2)
        total, count = 0.0, 0
        for row, sentence in enumerate(tokens[:, 1:].tolist()):
            sums = dict.fromkeys(("loss", "words", "found", "known", "known_found"), 0.0)
            for place, word in enumerate(sentence):
                if word == 0:
                    seen["padding"] += 1
                    continue
                is_found = int(log_shares[row, place].argmax()) == word
                sums["loss"] -= float(log_shares[row, place, word])
                sums["words"] += 1
                sums["found"] += is_found
                if word == 1:
                    seen["unknown"] += 1
                else:
                    sums["known"] += 1
                    sums["known_found"] += is_found
            for metric, numerator, weight in (
                ("loss", "loss", "words"),
                ("perplexity", "loss", "words"),
                ("accuracy", "found", "words"),
                ("in_vocabulary_accuracy", "known_found", "known"),
            ):
                mine = [float(part[device, row]) for part in measured[metric]]
                assert mine == pytest.approx([sums[numerator], sums[weight]], rel=1e-4)
            total, count = total + sums["loss"], count + int(sums["words"])
        assert float(losses[device]) == pytest.approx(total / count, rel=1e-5)
    assert min(seen.values()) > 0  # else the test shows less than it says


def test_metrics_of_ranks_and_of_frequent_words_are_counted_word_by_word(monkeypatch) -> None:
    """Of 11 tokens 0 is padding and 1 unknown, so the 4 most frequent words are 2 to 5."""
    monkeypatch.setattr(text, "SCORES_AT_ONCE", 40)
    task = made(MODELS["unit"], TEXT)
    batch, parameters = batch_of(TEXT), parameters_of(task)
    with torch.no_grad():
        measured = task.measure(parameters, batch)
    assert [each.name for each in task.metrics] == list(measured)
    counts = dict.fromkeys(measured, 0)
    weights = dict.fromkeys(measured, 0)
    for device in range(3):
        own = {part: value[device] for part, value in parameters.items()}
        tokens = batch["tokens"][device]
        scores = _nats_of_unit_lstm(own, tokens[:, :-1]).detach()
        for word, row in zip(tokens[:, 1:].flatten().tolist(), scores.flatten(0, 1), strict=True):
            if word == 0:
                continue
            best = sorted(range(11), key=lambda each, row=row: -float(row[each]))
            for name, k in (("top_3", 3), ("top_2", 2), ("head", 1), ("head_top_3", 3)):
                if "head" not in name or 2 <= word <= 5:
                    counts[f"{name}_accuracy"] += word in best[:k]
                    weights[f"{name}_accuracy"] += 1
            counts["head_predictions"] += sum(2 <= each <= 5 for each in best[:3])
            weights["head_predictions"] += 3
    for name in ("top_3_accuracy", "top_2_accuracy", "head_accuracy", "head_predictions"):
        found = [int(part.sum()) for part in measured[name]]
        assert found == [counts[name], weights[name]], name
        assert 0 < counts[name] < weights[name]


def test_ranks_and_frequent_words_that_the_data_lacks_are_refused() -> None:
    language = {"tokens": Field((9,), "whole", 401, start=400)}
    for table, fields, message in (
        (KeyboardLstmTask(head=10), TEXT, "numbers 9 words by their frequency"),
        (KeyboardLstmTask(head=1), language, "numbers 0 words"),
        (KeyboardLstmTask(top=(12,)), TEXT, "has 11 words to predict"),
    ):
        with pytest.raises(ScenarioError, match=message):
            made(table, fields)
    with pytest.raises(ValueError, match="different numbers"):
        KeyboardLstmTask(top=(3, 3))


@EACH
@pytest.mark.parametrize("devices", [1, 3])
def test_padding_changes_neither_losses_nor_gradients(table, devices: int) -> None:
    """A batch whose texts are padded by one word more has the same of both."""
    task = made(table, TEXT)
    tokens = batch_of(TEXT, devices)["tokens"]
    longer = torch.cat([tokens, torch.zeros_like(tokens[:, :, :1])], dim=2)
    wider = made(table, {"tokens": Field((8,), "whole", 11, padding=0, unknown=1)})
    results = []
    for model, batch in ((task, tokens), (wider, longer)):
        leaves = {k: v.requires_grad_() for k, v in parameters_of(task, devices).items()}
        losses = model.losses(leaves, {"tokens": batch})
        results.append((losses, torch.autograd.grad(losses.sum(), list(leaves.values()))))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


@EACH
@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_without_a_word_has_loss_zero(table, devices: int) -> None:
    task = made(table, TEXT)
    tokens = torch.zeros(devices, 4, 7, dtype=torch.int64)
    leaves = {name: part.requires_grad_() for name, part in parameters_of(task, devices).items()}
    losses = task.losses(leaves, {"tokens": tokens})
    gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
    assert losses.tolist() == [0.0] * devices
    assert not any(part.any() for part in gradients)


@EACH
def test_a_word_is_predicted_from_those_before_it(table) -> None:
    """Another last word changes the loss of no word before it."""
    task = made(table, {"tokens": Field((7,), "whole", 11)})
    tokens = torch.arange(2, 8)[None, None].repeat(1, 2, 1)
    tokens[0, 1, 4] = 1
    states = task.states(parameters_of(task, 1), tokens)
    assert torch.equal(states[0, 0, :4], states[0, 1, :4])
    assert not torch.allclose(states[0, 0, 4:], states[0, 1, 4:])


def test_without_an_unknown_word_both_accuracies_are_one() -> None:
    fields = {"tokens": Field((7,), "whole", 11, padding=0)}
    task = made(MODELS["cifg"], fields)
    measured = task.measure(parameters_of(task), batch_of(fields))
    assert torch.equal(measured["accuracy"][0], measured["in_vocabulary_accuracy"][0])
    assert torch.equal(measured["accuracy"][1], measured["in_vocabulary_accuracy"][1])


def test_the_loss_may_be_differentiated_once() -> None:
    """Its gradient overwrites what it was made from: a second one is an error, and not wrong."""
    task = made(MODELS["cifg"], TEXT)
    leaves = {name: part.requires_grad_() for name, part in parameters_of(task).items()}
    total = task.losses(leaves, batch_of(TEXT)).sum()
    torch.autograd.grad(total, list(leaves.values()), retain_graph=True)
    with pytest.raises(AttributeError):
        torch.autograd.grad(total, list(leaves.values()))


def test_large_logits_neither_overflow_nor_lose_a_rare_word() -> None:
    states = torch.tensor([[[1.0], [-1.0]]])
    weights = torch.tensor([[[200.0], [-200.0], [0.0]]])
    nats = text._OutputLoss.apply(states, weights, None, torch.tensor([[1, 1]]))
    assert nats.tolist() == [[400.0, 0.0]]


@pytest.mark.parametrize("cell", ["cifg", "lstm"])
def test_initial_values_are_those_of_keras(cell: str) -> None:
    table = KeyboardLstmTask(hidden=6, embedding=4, cell=cell)
    task = made(table, TEXT)
    flat = torch.from_numpy(task.initial_parameters())[None]
    own = {name: part[0].numpy() for name, part in named(flat, task.shapes).items()}
    gates = 3 if cell == "cifg" else 4
    # The forget gate stands before the candidate, which is last.
    expected = np.zeros((gates, 6))
    expected[-2] = 1.0
    assert own["gate_bias"].tolist() == expected.ravel().tolist()
    rows = own["recurrent"].astype(np.float64)
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-6)
    assert 0.9 * text_bound(4 + 6 * gates) < np.abs(own["input"]).max() <= text_bound(4 + 6 * gates)
    assert 0.04 < np.abs(own["embedding"]).max() <= 0.05
    assert not own["output_bias"].any()


def text_bound(fans: int) -> float:
    return math.sqrt(6.0 / fans)


def test_one_layer_with_projection_keeps_the_digest_of_scenarios(small) -> None:
    """Scenarios at the defaults have neither key."""
    plain = small("training.task={kind='keyboard_lstm'}")
    assert not {"layers", "projected"} & plain.to_tables()["training"]["task"].keys()
    told = small("training.task={kind='keyboard_lstm',layers=1,projected=true}")
    assert told.digest == plain.digest
    deep = small("training.task={kind='keyboard_lstm',cell='lstm',layers=2,projected=false}")
    assert deep.digest != plain.digest


@pytest.mark.parametrize("keys", ["", "cell='lstm',tied=true,"])
def test_an_output_layer_that_needs_the_projection_keeps_it(small, keys: str) -> None:
    with pytest.raises(ScenarioError, match="take cell='lstm' and tied=false"):
        small(f"training.task={{kind='keyboard_lstm',{keys}projected=false}}")
