"""MobileNetV2 for 32×32 images.

Paper: Sandler, Howard, Zhu, Zhmoginov & Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
CVPR 2018.

Definition: follows https://github.com/weiaicunzai/pytorch-cifar100. What differs from the paper: the stem is
a 1×1 convolution without stride, padded by one pixel (32×32 becomes 34×34); the sixth stage does not stride,
so that 5×5 pixels are left; the first block has an expanding 1×1 convolution although its factor is 1; all
convolutions have a bias. What differs from that code: the classifier is a linear layer, not a 1×1 convolution.

Initialisation: torch's default, as in that code; the paper prescribes none.
"""

from torch import Tensor, nn

from spatialgrad.models.layers import scale_channels

_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280
# Expansion factor, channels, number of blocks and stride of the first block of each stage.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 1),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expanding 1×1 convolution, depthwise 3×3 convolution, and projecting 1×1 convolution without rectifier.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        stride: Stride of the depthwise convolution.
        expansion: Number of channels of the depthwise convolution, as a multiple of the input's.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, inner, 1),
            nn.BatchNorm2d(inner),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner),
            nn.BatchNorm2d(inner),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inner, out_channels, 1),
            nn.BatchNorm2d(out_channels),
        )
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual, with the input added where their shapes agree."""
        residual: Tensor = self.residual(x)
        return x + residual if self.has_shortcut else residual


class MobileNetV2(nn.Module):
    """A stem, seven stages of inverted residuals, a wide 1×1 convolution, average pooling and one linear layer.

    Args:
        num_classes: Number of classes.
        width: Factor on the numbers of channels, including those of the last 1×1 convolution.
        in_channels: Number of channels of the images.
    """

    def __init__(self, *, num_classes: int = 100, width: float = 1.0, in_channels: int = 3) -> None:
        super().__init__()
        previous = scale_channels(_STEM_CHANNELS, width)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, previous, 1, padding=1), nn.BatchNorm2d(previous), nn.ReLU6(inplace=True)
        )
        blocks: list[nn.Module] = []
        for expansion, channels, depth, first_stride in _STAGES:
            scaled = scale_channels(channels, width)
            for block in range(depth):
                stride = first_stride if block == 0 else 1
                blocks.append(InvertedResidual(previous, scaled, stride=stride, expansion=expansion))
                previous = scaled
        self.blocks = nn.Sequential(*blocks)
        head = scale_channels(_HEAD_CHANNELS, width)
        self.head = nn.Sequential(nn.Conv2d(previous, head, 1), nn.BatchNorm2d(head), nn.ReLU6(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(head, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.fc(self.pool(self.head(self.blocks(self.stem(images)))).flatten(1))
        return logits


NETWORKS = {"mobilenetv2": MobileNetV2}
"""How each of the family's networks is built, by name."""
