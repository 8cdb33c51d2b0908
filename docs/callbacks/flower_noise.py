"""Correlated noise in a Flower training, with the clipping of updates on the server.

    noise = fedray.CorrelatedNoise(
        strategy, 100, model.state_dict().values(), noise_multiplier=6.0, clip_norm=0.5
    )
    CorrelatedNoiseFedAvg(noise, min_train_nodes=50).start(grid, arrays, num_rounds=100)

Every client counts alike, because examples as weights would let some contribute more than the clip
norm. Metrics of clients are averaged as by FedAvg: they have no noise.
"""

import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg


class CorrelatedNoiseFedAvg(FedAvg):
    """Releases the mean of clipped updates, with the next row of the noise in their sum. Rounds
    without a reply release nothing, and take no row."""

    def __init__(self, noise, **keywords):
        super().__init__(**keywords)
        self.noise = noise

    def configure_train(self, server_round, arrays, config, grid):
        self.sent = arrays.to_torch_state_dict()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        _, metrics = super().aggregate_train(server_round, replies)
        updates = [self.clipped(reply.content) for reply in replies if not reply.has_error()]
        if not updates:
            return None, metrics
        sums = [sum(parts) for parts in zip(*updates, strict=True)]
        self.noise.add_(sums)
        model = {
            name: old + total / len(updates)
            for (name, old), total in zip(self.sent.items(), sums, strict=True)
        }
        return ArrayRecord(model), metrics

    def clipped(self, content):
        (record,) = content.array_records.values()
        new = record.to_torch_state_dict()
        update = [new[name] - old for name, old in self.sent.items()]
        norm = torch.stack([part.square().sum() for part in update]).sum().sqrt()
        if not torch.isfinite(norm):
            # A client that sends no numbers contributes nothing; a sum with them would have no end.
            return [torch.zeros_like(part) for part in update]
        # An update of zeros has norm 0, by which nothing can be divided.
        factor = self.noise.clip_norm / max(float(norm), self.noise.clip_norm)
        return [part * factor for part in update]
