"""ResNet with squeeze-and-excitation for 32×32 images.

Paper: Hu, Shen & Sun, "Squeeze-and-Excitation Networks", CVPR 2018.

Definition: follows https://github.com/weiaicunzai/pytorch-cifar100. What differs from the paper: all
convolutions have a bias; the residual is rectified before it is squeezed. With a small `width`, the excitation
keeps at least 4 hidden units, as many as it has in the first stage at width 1.

Initialisation: torch's default, as in that code; the paper prescribes He et al. (ICCV 2015).
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from spatialgrad.models.resnet import DEPTHS, BasicBlock, ResNet


class SqueezeExcitation(nn.Module):
    """Channel weights in (0, 1) that depend on the means of all channels.

    Args:
        channels: Number of channels of the map.
        reduction: Ratio of the number of channels to the number of hidden units.
    """

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        hidden = max(4, channels // reduction)
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.excitation = nn.Sequential(
            nn.Linear(channels, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, channels), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted map."""
        weights: Tensor = self.excitation(self.squeeze(x).flatten(1))
        return x * weights[:, :, None, None]


class SEBasicBlock(BasicBlock):
    """A ResNet's basic block whose residual is weighted by squeeze-and-excitation; arguments as for `BasicBlock`."""

    def __init__(self, in_channels: int, channels: int, *, bias: bool = True, **settings: Any) -> None:
        super().__init__(in_channels, channels, bias=bias, **settings)
        self.se = SqueezeExcitation(channels)

    def residual(self, x: Tensor) -> Tensor:
        """Return the weighted residual, which is rectified first."""
        y: Tensor = self.se(self.relu(super().residual(x)))
        return y


NETWORKS = {f"seresnet{layers}": partial(ResNet, SEBasicBlock, DEPTHS[layers], conv_bias=True) for layers in (18, 34)}
"""How each of the family's networks is built, by name."""
