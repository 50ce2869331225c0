"""PyramidNet with 110 layers of basic blocks, for 32×32 images.

Paper: Han, Kim & Kim, "Deep Pyramidal Residual Networks", CVPR 2017. The suffix of the names is the paper's
widening factor α: over the 54 blocks, the number of channels grows linearly from 16 to 16 + α. Nothing differs
from the paper's network for CIFAR.

Initialisation: as in the published code, https://github.com/dyhan0920/PyramidNet-PyTorch: convolutions after
He et al. (ICCV 2015) by fan-out, the linear layer torch's default.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.models.layers import init_he_, scale_channels

_STEM_CHANNELS = 16
_STAGES = 3


class PyramidBlock(nn.Module):
    """Batch normalization, then two 3×3 convolutions with batch normalization and a rectifier between them.

    The shortcut has no parameters: it is average-pooled 2×2 if the block strides, and padded with zero channels.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels, at least `in_channels`.
        stride: Stride of the first convolution, 1 or 2.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.pool = nn.AvgPool2d(2, ceil_mode=True) if stride > 1 else nn.Identity()
        self.extra_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of residual and widened shortcut."""
        residual: Tensor = self.residual(x)
        return residual + F.pad(self.pool(x), (0, 0, 0, 0, 0, self.extra_channels))


class PyramidNet(nn.Module):
    """A stem, three stages of gradually widening blocks, average pooling and one linear layer.

    Args:
        alpha: Number of channels that the last block has in addition to the stem's, at width 1.
        num_classes: Number of classes.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
        layers: Number of weighted layers, 6n + 2 for n blocks per stage.

    Raises:
        ValueError: If `layers` is not 6n + 2.
    """

    def __init__(
        self,
        alpha: int,
        *,
        num_classes: int = 100,
        width: float = 1.0,
        in_channels: int = 3,
        layers: int = 110,
    ) -> None:
        super().__init__()
        depth, rest = divmod(layers - 2, 2 * _STAGES)
        if rest or depth < 1:
            raise ValueError(f"layers must be 6n + 2 with n at least 1, not {layers}")
        previous = scale_channels(_STEM_CHANNELS, width)
        self.stem = nn.Sequential(nn.Conv2d(in_channels, previous, 3, padding=1, bias=False), nn.BatchNorm2d(previous))
        num_blocks = _STAGES * depth
        blocks: list[nn.Module] = []
        for block in range(num_blocks):
            channels = scale_channels(_STEM_CHANNELS + alpha * (block + 1) / num_blocks, width)
            stride = 2 if block > 0 and block % depth == 0 else 1
            blocks.append(PyramidBlock(previous, channels, stride=stride))
            previous = channels
        self.blocks = nn.Sequential(*blocks)
        self.final = nn.Sequential(nn.BatchNorm2d(previous), nn.ReLU(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(previous, num_classes)
        init_he_(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.fc(self.pool(self.final(self.blocks(self.stem(images)))).flatten(1))
        return logits


NETWORKS = {f"pyramidnet110-a{alpha}": partial(PyramidNet, alpha) for alpha in (48, 84, 270)}
"""How each of the family's networks is built, by name."""
