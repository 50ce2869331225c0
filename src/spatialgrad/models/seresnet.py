"""ResNet with squeeze-and-excitation for 32×32 images.

Paper: Hu, Shen & Sun, "Squeeze-and-Excitation Networks", CVPR 2018.

Definition: follows https://github.com/weiaicunzai/pytorch-cifar100. What differs from the paper: all
convolutions have a bias; the residual is rectified before it is squeezed. With a small `width`, the excitation
keeps at least 4 hidden units, as many as it has in the first stage at width 1.

Initialisation: torch's default, as in that code; the paper prescribes He et al. (ICCV 2015).
"""

from functools import partial

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
    """A ResNet's basic block whose residual is weighted by squeeze-and-excitation.

    Args:
        in_channels: Number of input channels.
        channels: Number of output channels of both convolutions.
        stride: Stride of the first convolution.
        dilations: Dilation of the first and of the second convolution.
        bias: Whether the convolutions have a bias.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        stride: int = 1,
        dilations: tuple[int, int] = (1, 1),
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, channels, stride=stride, dilations=dilations, bias=bias)
        self.se = SqueezeExcitation(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of the weighted residual and the shortcut."""
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.se(self.relu(self.bn2(self.conv2(residual))))
        y: Tensor = self.relu(residual + (x if self.downsample is None else self.downsample(x)))
        return y


NETWORKS = {f"seresnet{layers}": partial(ResNet, SEBasicBlock, DEPTHS[layers], conv_bias=True) for layers in (18, 34)}
"""How each of the family's networks is built, by name."""
