"""The aggregator: sums encoded updates exactly, adds the mechanism's noise, takes the server step.
Plain Python.

Round t releases sum_t + z * norm * share * (C^-1 Z)[t], divided by the devices in the sum. `norm`
is the most that a device can contribute to the sum, which the encoding says: the round's clip norm,
or more where encoding makes updates longer. z is the noise multiplier of the scenario, or what a
count of short updates leaves of it. `share` is cohort_sample / report_goal: where only a sample of
the cohort trains, noise of the sample's share keeps the signal-to-noise ratio of the full cohort
(the practice of DP-FTRL studies). The privacy claimed is that of the full cohort. Where devices add
the noise themselves (the encoding says that too), the server adds none.

Sums are kept on the CPU whatever the device: they come from there, and are decoded once a round.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.encoding.registry import encoding_of
from fedray.errors import CheckpointError, InputError
from fedray.messages import Clip, TrainReport
from fedray.scenario import Scenario
from fedray.trace.checkpoints import prefixed, under
from server.clip_rule import clip_rule_of
from server.noise import NoiseStream, noise_stream
from server.optimizers import optimizer_of


class ModelAggregator:
    """Parameters, noise and optimiser of one run, on one device ("cpu", "cuda"). Raises InputError
    where that is not there.

    device_kind: "cpu", or "cuda" and the model of GPU. Noise is the same on devices of one kind,
        and differs between kinds.
    """

    def __init__(self, scenario: Scenario, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self.device_kind = _kind_of(self._device)
        self._scenario = scenario
        self._noise_multiplier = scenario.update_noise_multiplier
        self._noise_share = scenario.training.cohort_sample / scenario.rounds.report_goal

    def start(self, parameters: NDArray[np.float32]) -> tuple[Clip, NDArray[np.float32]]:
        """Takes the initial parameters [D], and gives them back; see `commit`."""
        dimension = parameters.size
        self._parameters_D = torch.tensor(parameters, device=self._device)
        self._encoding = encoding_of(
            self._scenario.privacy.encoding, self._scenario.sum_setting(dimension)
        )
        self._total_P = self._encoding.zero_sum()
        self._noise: NoiseStream = noise_stream(
            self._scenario.privacy.mechanism,
            self._scenario.training_seed,
            dimension,
            self._device,
            self._scenario.rounds.count,
        )
        self._optimizer = optimizer_of(self._scenario, dimension, self._device)
        self._rule = clip_rule_of(self._scenario)
        return self._rule.clip(), self._parameters()

    def add(self, total: NDArray[np.int64]) -> None:
        """Adds a trainer's sum [P] of encoded updates to that of the round."""
        self._encoding.add(self._total_P, total)

    def commit(self, report: TrainReport) -> tuple[Clip, NDArray[np.float32]]:
        """Ends a round: noise, and the server step.

        Args:
            report: what became of the round's cohort; rounds come in order. The sum is divided by
                the devices that were asked. Devices that failed count: the sensitivity of the mean
                must not depend on what they computed.

        Returns:
            How the next round's updates are to be clipped, and the new parameters [D], which may
            change with the next commit.

        Raises:
            ValueError: a round is skipped or repeated.
        """
        if report.round_index != self._noise.next_round:
            raise ValueError(
                f"round_index={report.round_index} but round {self._noise.next_round} is next; "
                "noise rows are used once"
            )
        update_D = self.release().div_(report.devices)
        self._optimizer.apply(self._parameters_D, update_D, report.round_index)
        self._rule.commit(report)
        return self._rule.clip(), self._parameters()

    def release(self) -> torch.Tensor:
        """The noised sum [D] of the next round; advances the noise and begins another sum."""
        clip_norm = self._rule.clip().norm
        round_index = self._noise.next_round
        # Before the sum is decoded, so that not both need their memory at once.
        noise_D = self._noise.next()
        decoded_D = self._encoding.decode(self._total_P, clip_norm, round_index)
        self._total_P.fill(0)
        released_D = torch.from_numpy(decoded_D).to(self._device)
        if self._encoding.adds_noise:
            return released_D
        norm = self._encoding.contribution_norm(clip_norm)
        deviation = self._noise_multiplier * norm * self._noise_share
        return released_D.add_(noise_D, alpha=deviation)

    def state(self) -> dict[str, NDArray]:
        """The whole state as named arrays."""
        noise = prefixed("noise.", self._noise.state())
        optimizer = prefixed("optimizer.", self._optimizer.state())
        rule = prefixed("clip.", self._rule.state())
        parameters = self._parameters_D.cpu().numpy().copy()
        return {
            "parameters": parameters,
            "device": np.array(self.device_kind),
            **noise,
            **optimizer,
            **rule,
        }

    def load(self, state: dict[str, NDArray]) -> tuple[Clip, NDArray[np.float32]]:
        """Takes up a checkpoint of the same scenario, and gives its parameters [D]; see `commit`.

        Raises CheckpointError if another kind of device wrote it.
        """
        if str(state["device"]) != self.device_kind:
            raise CheckpointError(
                f"the model was trained on {str(state['device'])!r}, and its noise goes on only "
                "there; this aggregator is on "
                f"{self.device_kind!r}: give it the same number of GPUs as before, of that model"
            )
        self.start(state["parameters"].astype(np.float32))
        self._noise.load(under("noise.", state))
        self._optimizer.load(under("optimizer.", state))
        self._rule.load(under("clip.", state))
        return self._rule.clip(), self._parameters()

    def _parameters(self) -> NDArray[np.float32]:
        return self._parameters_D.cpu().numpy()


def _kind_of(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    if not torch.cuda.is_available():
        raise InputError(
            "aggregator_gpus is not 0 but torch sees no GPU; install torch's CUDA build, or leave "
            "it out for the CPU"
        )
    return f"cuda {torch.cuda.get_device_name(device)}"
