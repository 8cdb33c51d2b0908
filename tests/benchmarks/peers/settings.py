"""What is trained in the comparison with other simulators: models, data, clipping. It needs numpy
and torch alone, so that every simulator's own environment can read it."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

DEVICES = 1000
"""Devices with data. Their data is in memory before the clock starts, for everyone."""
CLIP_NORM, NOISE_DEVIATION = 0.5, 0.5


@dataclass(frozen=True)
class Setting:
    """cohort: devices in a round. examples: of each device. batch: examples in a local step; a
    device goes through its examples once."""

    cohort: int
    examples: int
    batch: int
    learning_rate: float
    parameters: int


SETTINGS = {
    "mlp": Setting(cohort=100, examples=50, batch=10, learning_rate=0.1, parameters=4_810),
    "lstm": Setting(cohort=100, examples=32, batch=16, learning_rate=0.5, parameters=354_664),
    "cnn": Setting(cohort=50, examples=50, batch=10, learning_rate=0.1, parameters=1_626_442),
}
WORDS, LENGTH = 1000, 10


class Lstm(nn.Module):
    """Embedding 64, LSTM 200, projection 64, an output embedding of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        self.lstm = nn.LSTM(64, 200, batch_first=True)
        self.projection = nn.Linear(200, 64)
        self.output = nn.Linear(64, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, WORDS, T] of tokens [B, T]."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.output(self.projection(states)).transpose(1, 2)


def model_of(name: str) -> nn.Module:
    """The model of a setting, with initial parameters that are the same everywhere."""
    torch.manual_seed(0)
    if name == "mlp":
        model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    elif name == "lstm":
        model = Lstm()
    else:
        model = nn.Sequential(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10)),
        )
    found = sum(part.numel() for part in model.parameters())
    assert found == SETTINGS[name].parameters, found
    return model


@cache
def examples_of(name: str, device: int) -> tuple[Tensor, Tensor]:
    """Inputs [N, ...] and targets [N, ...] of a device."""
    draws = torch.Generator().manual_seed(device % DEVICES)
    count = SETTINGS[name].examples
    if name == "lstm":
        tokens = torch.randint(WORDS, (count, LENGTH + 1), generator=draws)
        return tokens[:, :-1], tokens[:, 1:]
    shape = (64,) if name == "mlp" else (3, 32, 32)
    return (
        torch.randn(count, *shape, generator=draws),
        torch.randint(10, (count,), generator=draws),
    )
