"""A task file whose module is chosen by the first line: MODEL = '...'."""

import numpy as np
import torch
from torch import nn

from fedray.clients.tasks.module import ModuleTask

WIDTH = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        seen = self.attention(inputs, inputs, inputs, need_weights=False)[0]
        return self.out(inputs.mean(dim=1) + seen.mean(dim=1))


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=dropout, batch_first=True)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(inputs).mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(inputs)[0].mean(dim=1))


class FrozenNorm(nn.Module):
    """Its norm has statistics of other data, and its first layer does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.norm(3.0 * torch.randn(50, WIDTH) + 1.0)
        self.norm.eval()
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.first(inputs.mean(dim=1))))


class Tied(nn.Module):
    """One weight in two layers; another is the product of its parts; a buffer changes in calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.calls * self.out(self.second(self.first(inputs.mean(dim=1)).tanh()))


class Branches(nn.Module):
    """Its values decide which way it goes, which no batch of models can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        means = inputs.mean(dim=1)
        return self.out(means if means.sum() > 0 else 2.0 * means)


MODELS = {
    each.__name__: each for each in (Attention, Encoder, Recurrent, FrozenNorm, Tied, Branches)
}


def examples(device: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = np.random.default_rng(device)
    inputs = torch.from_numpy(draws.standard_normal((20, 5, WIDTH), np.float32))
    return inputs, (inputs.sum(dim=(1, 2)) > 0).long()


def task(seed: int) -> ModuleTask:
    return ModuleTask(MODELS[MODEL](), examples, nn.functional.cross_entropy)  # noqa: F821
