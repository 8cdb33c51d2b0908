"""Two 3 x 3 convolutions, max pooling and a dense layer of 128 units, for small images.

The convolutions have 32 and 64 channels, no padding and rectified linear units; pooling is 2 x 2.
pfl-research's `simple_cnn` for CIFAR-10 has 1,626,442 parameters; `create_conv_dropout_model` of
TensorFlow Federated for EMNIST has 1,199,882 with 10 classes and 1,206,590 with 62. Dropout is left
out: a loss is a function of parameters and examples.
"""

import torch
from torch import Tensor
from torch.nn import functional

from fedray.base.errors import ScenarioError
from fedray.scenario.tasks import ImageCnnTask
from ..data.source import Fields
from .classification import Classifier, classes_of, nats_of
from .initial import Draw, Parameter, by_fan_in, dense_parameters, glorot, zeros
from .layers import dense
from .task import Batch, Parameters

CHANNELS, UNITS = (32, 64), 128
KERNEL = 3
_CONVOLUTIONS = "convolution_1", "convolution_1_bias", "convolution_2", "convolution_2_bias"
LEAST_PIXELS = 6
"""Shortest edge of an image: the two convolutions take four pixels, and the pooling needs two."""


class ImageCnn(Classifier):
    """A convolutional classifier of images [height, width, channels] or [height, width].

    Weights start as Glorot's. Biases start at zero in "emnist", and uniform within 1 / sqrt(fan-in)
    in "cifar10", as in the originals.

    Raises:
        ScenarioError: the inputs are not images, or too small for the layers.
    """

    def __init__(self, table: ImageCnnTask, seed: int, fields: Fields) -> None:
        shape, classes = classes_of(table.kind, fields)
        is_image = len(shape) in (2, 3)
        # A grey image has one channel. Inputs that are not images count as having no pixels.
        height, width, channels = (*shape, 1)[:3] if is_image else (0, 0, 0)
        if min(height, width) < LEAST_PIXELS:
            raise ScenarioError.of(
                "training.task.kind",
                table.kind,
                f"needs images [height, width, channels] of at least {LEAST_PIXELS} x "
                f"{LEAST_PIXELS} pixels; the data has `inputs` {list(shape)}",
                "give them another data.shape, or choose mlp",
            )
        self._is_gray = len(shape) == 2
        first, second = CHANNELS
        area = KERNEL**2
        # Each convolution without padding takes a pixel from either side.
        flat = ((height - 4) // 2) * ((width - 4) // 2) * second
        is_drawn = table.architecture == "cifar10"

        def bias(fan_in: int) -> Draw:
            return by_fan_in(fan_in) if is_drawn else zeros

        # Fans of a convolution count the pixels that its kernel covers.
        input_fan = area * channels
        first_fan = area * first
        second_fan = area * second
        first_shape = (first, channels, KERNEL, KERNEL)
        second_shape = (second, first, KERNEL, KERNEL)
        dense_weight = glorot(flat, UNITS)
        classes_weight = glorot(UNITS, classes)
        parameters = {
            "convolution_1": Parameter(first_shape, glorot(input_fan, first_fan)),
            "convolution_1_bias": Parameter((first,), bias(input_fan)),
            "convolution_2": Parameter(second_shape, glorot(first_fan, second_fan)),
            "convolution_2_bias": Parameter((second,), bias(first_fan)),
            **dense_parameters("dense", flat, UNITS, dense_weight, bias(flat)),
            **dense_parameters("classes", UNITS, classes, classes_weight, bias(UNITS)),
        }
        super().__init__(parameters, seed)

    descends = True
    """Whether `descend` takes steps of this model, on the CPU."""

    def descend(self, parameters: Parameters, batch: Batch, rate: float) -> Tensor:
        """Takes a step of SGD of each device in place, as the gradients of `losses` would up to
        rounding. Returns the losses [G] before it.

        The dense layer has most of the weights: its gradient is added to them as it is computed.
        """
        convolved = {name: parameters[name].detach().requires_grad_() for name in _CONVOLUTIONS}
        targets = batch["targets"]
        maps = self._convolved(convolved, batch["inputs"])
        rows = maps.detach()
        layers = [(parameters[name], parameters[f"{name}_bias"]) for name in ("dense", "classes")]
        units = torch.relu_(dense(rows, *layers[0]))
        scores = dense(units, *layers[1])
        losses = nats_of(scores, targets).mean(dim=1)
        # The derivative of a cross-entropy by its logits is softmax - (1 at the target).
        slopes = scores.softmax(dim=2)
        slopes.scatter_add_(2, targets[..., None], -torch.ones_like(slopes[..., :1]))
        slopes /= targets.shape[1]
        unit_slopes = torch.bmm(slopes, layers[1][0].transpose(1, 2)).mul_(units > 0)
        row_slopes = torch.bmm(unit_slopes, layers[0][0].transpose(1, 2))
        for (weights, biases), read, made in zip(
            layers, (rows, units), (unit_slopes, slopes), strict=True
        ):
            weights.baddbmm_(read.transpose(1, 2), made, alpha=-rate)
            biases.sub_(made.sum(dim=1), alpha=rate)
        gradients = torch.autograd.grad(maps, list(convolved.values()), row_slopes)
        for name, gradient in zip(convolved, gradients, strict=True):
            parameters[name].sub_(gradient, alpha=rate)
        return losses

    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        maps = self._convolved(parameters, inputs)
        units = dense(maps, parameters["dense"], parameters["dense_bias"])
        return dense(torch.relu_(units), parameters["classes"], parameters["classes_bias"])

    def _convolved(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Returns the maps [G, B, flat] that the dense layer reads."""
        images = inputs[..., None] if self._is_gray else inputs
        # Channels stay last in memory, which oneDNN convolves faster than channels first.
        channels_first = images.movedim(-1, 2)
        own = [parameters[name].unbind() for name in _CONVOLUTIONS]
        # One call per device: on a CPU a grouped convolution, and `vmap`, which makes one, take 1.3
        # to 1.7 times as long.
        maps = [_maps(*each) for each in zip(channels_first.unbind(), *own, strict=True)]
        return torch.stack(maps)


def _maps(
    images: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor
) -> Tensor:
    """Applies convolutions and pooling to images [B, channels, height, width]: [B, flat]."""
    units = torch.relu_(functional.conv2d(images, first, first_bias))
    units = functional.conv2d(units, second, second_bias)
    # Rectifying the maximum of four values is the same as rectifying each of them.
    return torch.relu_(functional.max_pool2d(units, 2)).flatten(1)
