"""A server's optimizer as a user's file, with a tensor in its state and a number among its options."""

import torch


class Averaged(torch.optim.Optimizer):
    def __init__(self, parameters, learning_rate):
        super().__init__(parameters, {"lr": learning_rate, "taken": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["taken"] += 1
            for part in group["params"]:
                own = self.state[part]
                own["mean"] = 0.9 * own.get("mean", 0.0) + 0.1 * part.grad
                part.sub_(own["mean"], alpha=group["lr"] / group["taken"] ** 0.5)


optimizer = Averaged
