"""The aggregator: sums encoded updates exactly, adds the mechanism's noise, takes the server step.
Plain Python.

Round t releases sum_t + z * norm * share * (C^-1 Z)[t], divided by the number of devices in the sum
or another divisor of the estimator (server/learning/estimator.py). `norm` is the largest
contribution of a device, as the encoding states it: the clip norm of the round, or more if encoding
lengthens updates. z is the noise multiplier of the scenario, less the share of a count of short
updates; 0 with the mechanism none. `share` is the estimator's: if only a sample of the accepted
devices trains, noise of the sample's share keeps the signal-to-noise ratio of the full cohort (the
practice of DP-FTRL studies), and the privacy claimed is that of the full cohort.

If devices add the noise (the encoding states this too), the aggregator draws none and sees no sum
of updates, but W_t of a store (server/learning/store.py) and the number of its devices. The
recurrence of C^-1, which else makes correlated noise of draws, then makes noised sums of W:

    Y_t = (W_t - c_1 Y_(t-1) - .. - c_(b-1) Y_(t-b+1)) / c_0,   so that Y = X + C^-1 Z.

Y is kept as a sum, in steps and float64. The clip norm and the divisor come after it.

Sums stay on the CPU whatever the device: they come from there, and are decoded once a round.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.base.errors import CheckpointError
from fedray.encoding.device_noise import DeviceNoiseEncoding
from fedray.encoding.factory import encoding_of
from fedray.runtime import devices
from fedray.runtime.devices import device_of, kind_of_device
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.scenario.python_file import PROBED_STEPS
from fedray.scenario.training import CustomServer
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import TrainReport
from .clip_rule import clip_rule_of
from .draws import OpenedSums
from .estimator import estimator_of
from .noise import NoiseStream, noise_stream
from .optimizers import CustomStep, optimizer_of


class ModelAggregator:
    """Parameters, noise and optimiser of one run, on one device ("cpu", "cuda"). Raises InputError
    where that is not there.

    device_kind: "cpu", or "cuda" and the model of GPU. Noise is the same on devices of one kind,
        and differs between kinds.
    """

    def __init__(self, scenario: Scenario, device: str = "cpu") -> None:
        self._device = device_of(device, "aggregator_gpus")
        self.device_kind = kind_of_device(self._device)
        self._scenario = scenario
        self._noise_multiplier = scenario.update_noise_multiplier
        self._estimator = estimator_of(scenario)
        self._max_staleness = scenario.rounds.max_staleness
        self._older: dict[int, NDArray[np.float32]] = {}
        """The versions of the model before the newest from which devices may still train: [D] each,
        by how many rounds they were trained on."""

    def start(self, parameters: NDArray[np.float32]) -> tuple[Clip, NDArray[np.float32]]:
        """Takes the initial parameters [D], and gives them back; see `commit`."""
        dimension = parameters.size
        self._parameters_D = torch.tensor(parameters, device=self._device)
        self._encoding = encoding_of(
            self._scenario.privacy.sent, self._scenario.sum_setting(dimension)
        )
        self._opened: OpenedSums | None = None
        """Opened sums in place of draws, if devices add the noise."""
        if isinstance(self._encoding, DeviceNoiseEncoding):
            self._total_P = self._encoding.zero_opened()
            self._opened = OpenedSums()
        else:
            self._total_P = self._encoding.zero_sum()
        self._noise: NoiseStream = noise_stream(
            self._scenario.privacy.strategy,
            self._scenario.training_seed,
            dimension,
            self._device,
            self._scenario.rounds.count,
            draws=self._opened,
        )
        self._optimizer = optimizer_of(self._scenario, dimension, self._device)
        self._rule = clip_rule_of(self._scenario)
        self._older.clear()
        return self._rule.clip(), self._parameters()

    def rehearse(self, dimension: int) -> None:
        """Takes steps of a user's optimizer on a model of zeros [D], also after a resumption, so
        that it fails before the training. Raises ScenarioError."""
        table = self._scenario.training.server
        if not isinstance(table, CustomServer):
            return
        last, half = self._scenario.rounds.count - 1, PROBED_STEPS // 2

        def step(optimizer: CustomStep, vector_D: torch.Tensor, numbers: range) -> None:
            with optimizer.file.unchanged():
                for number in numbers:
                    optimizer.apply(vector_D, torch.ones_like(vector_D), min(number, last))

        whole, resumed = (
            CustomStep(table, self._scenario, dimension, self._device) for _ in range(2)
        )
        parameters_D = torch.zeros(dimension, device=self._device)
        step(whole, parameters_D, range(half))
        resumed.load(whole.state())
        again_D = parameters_D.clone()
        step(whole, parameters_D, range(half, PROBED_STEPS))
        step(resumed, again_D, range(half, PROBED_STEPS))
        # A step may give NaN, which would not equal itself.
        if not torch.equal(parameters_D.nan_to_num(), again_D.nan_to_num()):
            raise whole.file.refused(
                "a training that was resumed goes on otherwise than one that was not",
                "keep what changes in `state`, as tensors or numbers, and draw with torch",
            )

    def add(self, total: NDArray[np.int64]) -> None:
        """Adds a trainer's sum [P] of encoded updates to that of the round; or W [P]."""
        self._encoding.add(self._total_P, total)

    def draw_noise(self) -> None:
        """Draws the noise of the next round, which `commit` would do otherwise: while devices
        train, there is time. Draws nothing if devices add the noise."""
        if self._opened is None:
            self._noise.draw_ahead()

    def commit(
        self, report: TrainReport, last: NDArray[np.int64] | None = None
    ) -> tuple[Clip, NDArray[np.float32]]:
        """Ends a round: noise, and the server step.

        Args:
            report: the round's report; rounds come in order. If devices add the noise, it only has
                the round and the numbers of devices.
            last: a sum [P] to add before, as `add` does; None if all were added.

        Returns:
            Clipping of the next round's updates, and the new parameters [D], which the next commit
            overwrites on the CPU.

        Raises:
            ValueError: a round is skipped or repeated.
        """
        if report.round_index != self._noise.next_round:
            raise ValueError(
                f"round_index={report.round_index} but round {self._noise.next_round} is next; "
                "noise rows are used once"
            )
        if last is not None:
            self.add(last)
        # Before the step, which changes the parameters in place.
        self._keep_version(report.round_index)
        # Whatever depends on secrets (the scale) comes before the noise. The divisor is public and
        # comes after it.
        released_D = self.release(
            self._estimator.scale(report), self._estimator.noise_share(report)
        )
        mean_D = released_D.div_(self._estimator.divisor(report))
        # Post-processing: whatever the optimizer does with the released mean costs no privacy.
        self._optimizer.apply(self._parameters_D, mean_D, report.round_index)
        # This comes after the release, whose noise is measured by the norm of this round.
        self._rule.commit(report)
        return self._rule.clip(), self._parameters()

    def older_version(self, version: int) -> tuple[int, NDArray[np.float32]]:
        """An older version of the model from which devices may still train: its number, and its
        parameters [D]."""
        return version, self._older[version]

    def _keep_version(self, version: int) -> None:
        """Keeps the newest version, which is about to change, as long as devices may have it."""
        if not self._max_staleness:
            return
        self._older[version] = self._parameters().copy()
        # A report from this version would be too stale from now on.
        self._older.pop(version - self._max_staleness, None)

    def release(self, scale: float = 1.0, noise_share: float = 1.0) -> torch.Tensor:
        """Returns the noised sum [D] of the next round, advances the noise and begins another sum.
        If devices add the noise, they have scaled it, and neither factor is used.

        Args:
            scale: factor on the sum before noise is added; at most 1.
            noise_share: fraction of the full noise (z times the contribution norm) to add.
        """
        clip_norm = self._rule.clip().norm
        if isinstance(self._encoding, DeviceNoiseEncoding):
            return self._decoded(self._encoding, clip_norm)
        round_index = self._noise.next_round
        # Before the sum is decoded, so that not both need their memory at once.
        noise_D = self._noise.next()
        decoded_D = self._encoding.decode(self._total_P, clip_norm, round_index)
        # The sum is decoded by now, and its memory serves the next round.
        self._total_P.fill(0)
        released_D = torch.from_numpy(decoded_D).to(self._device).mul_(scale)
        norm = self._encoding.contribution_norm(clip_norm)
        # The theorems are about real numbers. What the rounding of float32 noise reveals is not
        # accounted for (Mironov 2012); the encodings that add integer noise do not have this gap.
        deviation = self._noise_multiplier * norm * noise_share
        return released_D.add_(noise_D, alpha=deviation)

    def _decoded(self, encoding: DeviceNoiseEncoding, clip_norm: float) -> torch.Tensor:
        """Returns Y of the next round [D], and begins another sum."""
        assert self._opened is not None
        self._opened.put(encoding.steps(self._total_P))
        self._total_P.fill(0)
        return (self._noise.next() * (clip_norm / encoding.scale)).float()

    def state(self) -> dict[str, NDArray]:
        """The whole state as named arrays."""
        noise = prefixed("noise.", self._noise.state())
        optimizer = prefixed("optimizer.", self._optimizer.state())
        rule = prefixed("clip.", self._rule.state())
        # On the CPU this would be a view of an array that the next step changes.
        parameters = devices.on_host(self._parameters_D).copy()
        older = {f"older.{version}": kept for version, kept in self._older.items()}
        return {
            "parameters": parameters,
            **older,
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
        # `start` creates every part again, so that no other state remains.
        self.start(state["parameters"].astype(np.float32))
        self._noise.load(under("noise.", state))
        self._optimizer.load(under("optimizer.", state))
        self._rule.load(under("clip.", state))
        self._older = {int(version): kept for version, kept in under("older.", state).items()}
        return self._rule.clip(), self._parameters()

    def _parameters(self) -> NDArray[np.float32]:
        # On the CPU this is a view of an array that the next step changes.
        return devices.on_host(self._parameters_D)
