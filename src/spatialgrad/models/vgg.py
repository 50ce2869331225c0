"""VGG for 32×32 images.

Paper: Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR
2015, configurations A, B, D and E.

What differs from the paper: batch normalization after every convolution; the classifier reads the 512
channels that are left at 1×1 pixels instead of 7×7×512 numbers (larger images are averaged down to one
pixel). `vgg16-slim` is the network of Table 1 of the spatial gradient scaling paper: configuration D with
convolutions without bias and a classifier with one hidden layer of 512, without dropout.

Pooling rounds up, which is the same at 32×32 and lets smaller images such as 28×28 through.

Initialisation: the paper's own alternative to pre-training a shallower network, Glorot & Bengio (2010).
"""

from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from spatialgrad.models.layers import init_glorot_, scale_channels
from spatialgrad.models.registry import ModelInfo, register

_CHANNELS = (64, 128, 256, 512, 512)
_DEPTHS = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}


class VGG(nn.Module):
    """Stages of 3×3 convolutions, each stage closed by a pooling, and a fully connected classifier.

    Args:
        depths: Number of convolutions in each of the five stages.
        num_classes: Outputs.
        width: Factor on the channels and on the classifier's hidden sizes.
        in_channels: Channels of the images.
        hidden: Sizes of the classifier's hidden layers at width 1.
        conv_bias: Whether the convolutions, which batch normalization follows, have a bias nevertheless.
        dropout: Probability of dropping a number after each hidden layer.
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
        init_glorot_(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        return self.classifier(self.pool(self.features(images)).flatten(1))


_info = partial(ModelInfo, family="vgg", paper="Simonyan & Zisserman, ICLR 2015, arXiv:1409.1556")
for _name, _depths in _DEPTHS.items():
    register(_info(name=_name, build=partial(VGG, _depths)))
register(
    _info(
        name="vgg16-slim",
        build=partial(VGG, _DEPTHS["vgg16"], hidden=(512,), conv_bias=False, dropout=0.0),
    )
)
