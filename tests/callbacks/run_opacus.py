"""A training by Opacus with the noise of docs/callbacks: `python run_opacus.py CALLBACKS`.

Needs fedray. Prints the parameters after each step, what they should be, and what was refused, as
JSON.
"""

import json
import sys
import warnings

import torch

sys.path.insert(0, sys.argv[1])
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus_noise import with_correlated_noise

import fedray
from fedray.mechanisms import BLT

STEPS, BATCH, CLIP_NORM, RATE = 20, 8, 1.0, 0.1


def optimizer_of(model: torch.nn.Module, reduction: str, noise_multiplier: float = 0.0):
    return DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=BATCH,
        loss_reduction=reduction,
    )


def noise_of(parameters, clip_norm: float = CLIP_NORM) -> fedray.CorrelatedNoise:
    mechanism = BLT(theta=(0.99, 0.75), omega=(0.15, 0.32))
    return fedray.CorrelatedNoise(
        mechanism, STEPS, parameters, noise_multiplier=4.0, clip_norm=clip_norm, seed=3
    )


def train(reduction: str) -> tuple[list[list[float]], list[list[float]]]:
    """Parameters after each step, and what they should be."""
    torch.manual_seed(0)
    inputs = torch.randn(STEPS, BATCH, 5)
    model = GradSampleModule(torch.nn.Linear(5, 1), loss_reduction=reduction)
    optimizer = optimizer_of(model, reduction)
    with_correlated_noise(optimizer, noise_of(optimizer.params))
    other = noise_of(optimizer.params)
    divisor = BATCH if reduction == "mean" else 1
    found, expected = [], []
    for batch in inputs:
        optimizer.zero_grad()
        errors = (model(batch) - batch.sum(1, keepdim=True)).square()
        getattr(errors, reduction)().backward()
        own = [each.grad_sample.clone() for each in optimizer.params]
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in own]).norm(dim=0)
        factors = (CLIP_NORM / norms).clamp(max=1.0)
        sums = [torch.tensordot(factors, each, 1) for each in own]
        step = [
            before.detach() - RATE * (total + noise) / divisor
            for before, total, noise in zip(optimizer.params, sums, other.next_noise(), strict=True)
        ]
        optimizer.step()
        found.append(torch.cat([each.detach().flatten() for each in optimizer.params]).tolist())
        expected.append(torch.cat([each.flatten() for each in step]).tolist())
    return found, expected


def refusal(noise_multiplier: float, clip_norm: float) -> str:
    model = GradSampleModule(torch.nn.Linear(5, 1))
    optimizer = optimizer_of(model, "mean", noise_multiplier)
    try:
        with_correlated_noise(optimizer, noise_of(optimizer.params, clip_norm))
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    # Opacus' hooks warn that inputs need no gradients.
    warnings.simplefilter("ignore")
    runs = {reduction: train(reduction) for reduction in ("mean", "sum")}
    print(json.dumps({**runs, "refused": [refusal(1.0, CLIP_NORM), refusal(0.0, 2.0)]}))


main()
