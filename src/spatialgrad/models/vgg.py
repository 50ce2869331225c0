"""VGG for 32×32 images.

Paper: Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR
2015, configurations A, B, D and E.

What differs from the paper: batch normalization after every convolution; the classifier reads the 512
channels that are left at 1×1 pixels instead of 7×7×512 numbers (larger images are averaged down to one
pixel). Pooling rounds up, which is the same at 32×32 and accepts smaller images such as 28×28.

- `vgg11` … `vgg19` follow https://github.com/weiaicunzai/pytorch-cifar100, the networks of the appendix of the
  spatial gradient scaling paper: convolutions with a bias, two hidden layers of 4096 with dropout.
  Initialisation: torch's default, as in that code.
- `vgg11-slim` … `vgg19-slim` follow the configurations of https://github.com/Ascend-Research/Reparameterization
  and https://github.com/hunto/image_classification_sota (DyRep), `vgg16-slim` being the network of Table 1 of the
  spatial gradient scaling paper: convolutions without bias, one hidden layer of 512 without dropout. VGG-11 has
  two such layers in its configuration, and here. Initialisation: as in that code, see `init_slim_`.
- `vgg11-linear` is ours: `vgg11-slim` without hidden layers, which fits within the few epochs that a computer
  without a GPU has time for.
"""

import math
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from spatialgrad.models.layers import init_he_, scale_channels

_CHANNELS = (64, 128, 256, 512, 512)
_DEPTHS = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}


class VGG(nn.Module):
    """Five stages of 3×3 convolutions, each followed by a pooling, and a fully connected classifier.

    Args:
        depths: Number of convolutions in each of the five stages.
        num_classes: Number of classes.
        width: Factor on the numbers of channels and on the classifier's hidden sizes.
        in_channels: Number of channels of the images.
        hidden: Sizes of the classifier's hidden layers at width 1.
        conv_bias: Whether the convolutions, which batch normalization follows, have a bias.
        dropout: Dropout probability after each hidden layer.
    """

    def __init__(
        self,
        depths: tuple[int, ...],
        *,
        num_classes: int = 100,
        width: float = 1.0,
        in_channels: int = 3,
        hidden: tuple[int, ...] = (4096, 4096),
        conv_bias: bool = True,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        features: list[nn.Module] = []
        previous = in_channels
        for depth, channels in zip(depths, _CHANNELS, strict=True):
            scaled = scale_channels(channels, width)
            for _ in range(depth):
                features += [
                    nn.Conv2d(previous, scaled, 3, padding=1, bias=conv_bias),
                    nn.BatchNorm2d(scaled),
                    nn.ReLU(inplace=True),
                ]
                previous = scaled
            features.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d(1)
        sizes = [previous, *(scale_channels(size, width) for size in hidden)]
        classifier: list[nn.Module] = []
        for size, following in pairwise(sizes):
            classifier += [nn.Linear(size, following), nn.ReLU(inplace=True)]
            if dropout:
                classifier.append(nn.Dropout(dropout))
        self.classifier = nn.Sequential(*classifier, nn.Linear(sizes[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def slim_vgg(
    depths: tuple[int, ...],
    *,
    num_classes: int = 100,
    width: float = 1.0,
    in_channels: int = 3,
    hidden: tuple[int, ...] = (512,),
    conv_bias: bool = False,
    dropout: float = 0.0,
) -> VGG:
    """Build a VGG with a small classifier and the initialisation of `init_slim_`; see `VGG` for the arguments."""
    model = VGG(
        depths,
        num_classes=num_classes,
        width=width,
        in_channels=in_channels,
        hidden=hidden,
        conv_bias=conv_bias,
        dropout=dropout,
    )
    init_slim_(model)
    return model


def init_slim_(model: nn.Module) -> None:
    """Initialise as the published code of the slim networks does, in place.

    Convolutions are normal with variance 2 / fan-out; linear layers are uniform between ± 1 / √fan-out; biases
    are 0.
    """
    init_he_(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.out_features)
            nn.init.uniform_(module.weight, -bound, bound)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)


NETWORKS = {
    **{name: partial(VGG, depths) for name, depths in _DEPTHS.items()},
    **{
        f"{name}-slim": partial(slim_vgg, depths, hidden=(512, 512) if name == "vgg11" else (512,))
        for name, depths in _DEPTHS.items()
    },
    "vgg11-linear": partial(slim_vgg, _DEPTHS["vgg11"], hidden=()),
}
"""How each of the family's networks is built, by name."""
