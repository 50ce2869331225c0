"""ShuffleNet for 32×32 images.

Paper: Zhang, Zhou, Lin & Sun, "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile
Devices", CVPR 2018.

Definition: follows https://github.com/weiaicunzai/pytorch-cifar100. What differs from the paper: the stem is
one 3×3 convolution without stride and pooling, so that 32×32 images reach the last stage with 4×4 pixels; all
convolutions have a bias; all 1×1 convolutions are grouped, including the first one, which the paper leaves
ungrouped.

Initialisation: torch's default, as in that code; the paper prescribes none.
"""

import torch
from torch import Tensor, nn

from spatialgrad.models.layers import scale_channels

_STEM_CHANNELS = 24
_FIRST_STAGE_CHANNELS = {1: 144, 2: 200, 3: 240, 4: 272, 8: 384}
_DEPTHS = (4, 8, 4)


class ShuffleUnit(nn.Module):
    """Grouped 1×1, shuffle, depthwise 3×3 and grouped 1×1; added or, with stride 2, concatenated to the input.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels: more than `in_channels` if the stride is 2, otherwise the same.
        stride: Stride of the depthwise convolution.
        groups: Number of groups of both 1×1 convolutions and of the shuffle.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, groups: int) -> None:
        super().__init__()
        inner = out_channels // 4
        residual_channels = out_channels - in_channels if stride > 1 else out_channels
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, inner, 1, groups=groups),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.ChannelShuffle(groups),
            nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner),
            nn.BatchNorm2d(inner),
            nn.Conv2d(inner, residual_channels, 1, groups=groups),
            nn.BatchNorm2d(residual_channels),
        )
        self.pool = nn.AvgPool2d(3, stride=2, padding=1) if stride > 1 else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum or, with stride 2, concatenation of shortcut and residual."""
        residual = self.residual(x)
        joined = x + residual if self.pool is None else torch.cat([self.pool(x), residual], dim=1)
        y: Tensor = self.relu(joined)
        return y


class ShuffleNet(nn.Module):
    """A stem, three stages of shuffle units, average pooling and one linear layer.

    Args:
        num_classes: Number of classes.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
        groups: Number of groups of the 1×1 convolutions: 1, 2, 3, 4 or 8, with the paper's channels for each.

    Raises:
        ValueError: If `groups` is not in the paper.
    """

    def __init__(self, *, num_classes: int = 100, width: float = 1.0, in_channels: int = 3, groups: int = 3) -> None:
        super().__init__()
        if groups not in _FIRST_STAGE_CHANNELS:
            raise ValueError(f"groups must be one of {sorted(_FIRST_STAGE_CHANNELS)}, not {groups}")
        previous = scale_channels(_STEM_CHANNELS, width, multiple_of=groups)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, previous, 3, padding=1), nn.BatchNorm2d(previous), nn.ReLU(inplace=True)
        )
        # The groups must divide a quarter of a unit's channels evenly.
        channels = scale_channels(_FIRST_STAGE_CHANNELS[groups], width, multiple_of=4 * groups)
        units: list[nn.Module] = []
        for depth in _DEPTHS:
            for unit in range(depth):
                units.append(ShuffleUnit(previous, channels, stride=2 if unit == 0 else 1, groups=groups))
                previous = channels
            channels *= 2
        self.units = nn.Sequential(*units)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(previous, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.fc(self.pool(self.units(self.stem(images))).flatten(1))
        return logits


NETWORKS = {"shufflenet": ShuffleNet}
"""How each of the family's networks is built, by name."""
