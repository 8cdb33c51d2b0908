"""A device's optimizer as a user's file: its step depends on the norm of each gradient, replaces parameters, and draws."""

import torch


class Scaled(torch.optim.Optimizer):
    def __init__(self, parameters, learning_rate):
        super().__init__(parameters, {"lr": learning_rate, "momentum": 0.5})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for part in group["params"]:
                velocity = self.state[part].setdefault("velocity", torch.zeros_like(part))
                velocity.mul_(group["momentum"]).add_(part.grad / (1.0 + part.grad.norm()))
                moved = velocity + 1e-3 * torch.randn_like(part)
                part.data = part.data - group["lr"] * moved


optimizer = Scaled
