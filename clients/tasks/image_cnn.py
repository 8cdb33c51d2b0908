"""Two convolutions of 3 x 3, max pooling, a dense layer of 128 units: for small images.

Convolutions of 32 and 64 channels without padding, each with rectified linear units; pooling of
2 x 2; the dense layer; and the classes. pfl-research's `simple_cnn` for CIFAR-10 has 1,626,442
parameters, the `create_conv_dropout_model` of TensorFlow Federated for EMNIST has 1,199,882 with 10
classes and 1,206,590 with 62. Both are here without their dropout: a loss is a function of
parameters and examples.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import Field
from fedray.clients.tasks.classification import Classifier, classes_of
from fedray.clients.tasks.initial import Draw, Parameter, constant, glorot, uniform
from fedray.clients.tasks.task import Parameters
from fedray.scenario.tasks import ImageCnnTask

CHANNELS, UNITS = (32, 64), 128
KERNEL = 3
LEAST_PIXELS = 6
"""Least length of an edge: two convolutions take four pixels, and the pooling needs two."""


class ImageCnn(Classifier):
    """A convolutional classifier of images [height, width, channels], or [height, width] of one.

    Weights begin as Glorot's. Biases begin at zero in "emnist", and uniform within 1 / sqrt(fan-in)
    in "cifar10", as in the originals.

    Args:
        table: says the architecture.
        seed: of the initial parameters.
        fields: of the data.

    Raises:
        ScenarioError: the inputs are no images, or too small for the layers.
    """

    def __init__(self, table: ImageCnnTask, seed: int, fields: Mapping[str, Field]) -> None:
        shape, classes = classes_of(table.kind, fields)
        is_image = len(shape) in (2, 3)
        # A grey image has one channel. What is no image is refused as one without pixels.
        height, width, channels = (*shape, 1)[:3] if is_image else (0, 0, 0)
        if min(height, width) < LEAST_PIXELS:
            raise ScenarioError.of(
                "training.task.kind",
                table.kind,
                f"needs images [height, width, channels] of at least {LEAST_PIXELS} x "
                f"{LEAST_PIXELS} pixels; the data has `inputs` {list(shape)}",
                "give them another data.shape, or take mlp",
            )
        self._is_gray = len(shape) == 2
        first, second = CHANNELS
        area = KERNEL**2
        # Each convolution without padding takes a pixel from either side.
        pooled_height = (height - 4) // 2
        pooled_width = (width - 4) // 2
        flat = pooled_height * pooled_width * second

        def bias(fan_in: int) -> Draw:
            is_drawn = table.architecture == "cifar10"
            return uniform(1.0 / math.sqrt(fan_in)) if is_drawn else constant(0.0)

        first_shape = (first, channels, KERNEL, KERNEL)
        second_shape = (second, first, KERNEL, KERNEL)
        # Fans of a convolution count the pixels that its kernel covers.
        first_weight = glorot(area * channels, area * first)
        second_weight = glorot(area * first, area * second)
        parameters = {
            "convolution_1": Parameter(first_shape, first_weight),
            "convolution_1_bias": Parameter((first,), bias(area * channels)),
            "convolution_2": Parameter(second_shape, second_weight),
            "convolution_2_bias": Parameter((second,), bias(area * first)),
            "dense": Parameter((flat, UNITS), glorot(flat, UNITS)),
            "dense_bias": Parameter((UNITS,), bias(flat)),
            "classes": Parameter((UNITS, classes), glorot(UNITS, classes)),
            "classes_bias": Parameter((classes,), bias(UNITS)),
        }
        super().__init__(parameters, seed)

    def scores(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The logits [G, B, classes] of `inputs` by each device's `parameters`.

        The convolutions of a group are one call per device: on a CPU a grouped convolution, and
        `vmap`, which makes one, take 1.3 to 1.7 times as long.
        """
        images = inputs[..., None] if self._is_gray else inputs
        # Channels stay last in memory, which oneDNN convolves faster than channels first.
        channels_first = images.movedim(-1, 2)
        own = zip(
            channels_first.unbind(),
            parameters["convolution_1"].unbind(),
            parameters["convolution_1_bias"].unbind(),
            parameters["convolution_2"].unbind(),
            parameters["convolution_2_bias"].unbind(),
            strict=True,
        )
        maps = torch.stack([_maps(*each) for each in own])
        units = _dense(parameters, "dense", maps)
        return _dense(parameters, "classes", torch.relu_(units))


def _maps(images: Tensor, *parameters: Tensor) -> Tensor:
    """[B, flat] of images [B, channels, height, width]: both convolutions and the pooling."""
    first, first_bias, second, second_bias = parameters
    units = torch.relu_(functional.conv2d(images, first, first_bias))
    units = functional.conv2d(units, second, second_bias)
    # The greatest of four is rectified once instead of each of the four.
    return torch.relu_(functional.max_pool2d(units, 2)).flatten(1)


def _dense(parameters: Parameters, name: str, units: Tensor) -> Tensor:
    bias = parameters[f"{name}_bias"][:, None, :]
    return torch.baddbmm(bias, units, parameters[name])
