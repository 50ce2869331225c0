"""Pre-activation ResNet for 32×32 images.

Paper: He, Zhang, Ren & Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016.

Definition: follows https://github.com/weiaicunzai/pytorch-cifar100. What differs from the paper: the stem
keeps its own batch normalization and rectifier, and the first block normalizes once more; a shortcut that
changes shape is a plain 1×1 convolution of the block's raw input; no batch normalization follows the last
block; all convolutions have a bias.

Without the last batch normalization, nothing bounds the input of the linear layer, and training can diverge at
learning rates that are stable for the other networks. `final_norm=True` adds it as in the paper, for 1,024
additional parameters (0.01 %) and no additional multiply-accumulates.

Initialisation: torch's default, as in that code; the paper prescribes He et al. (ICCV 2015).
"""

from functools import partial

from torch import Tensor, nn

from spatialgrad.models.resnet import DEPTHS, ResidualBlock, ResNet, conv3x3


class PreActBlock(ResidualBlock):
    """Two 3×3 convolutions, each after batch normalization and rectifier, and an unnormalized shortcut.

    Arguments as for `ResidualBlock`.
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
        super().__init__(in_channels, channels)
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, channels, stride=stride, dilation=dilations[0], bias=bias)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels, dilation=dilations[1], bias=bias)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or in_channels != channels:
            self.downsample = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=bias)

    def residual(self, x: Tensor) -> Tensor:
        """Return the output of the second convolution."""
        y: Tensor = self.conv1(self.relu(self.bn1(x)))
        y = self.conv2(self.relu(self.bn2(y)))
        return y

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of residual and shortcut."""
        return self.residual(x) + self.shortcut(x)


class PreActResNet(ResNet):
    """A ResNet of pre-activation blocks.

    Args:
        depths: Number of blocks in each of the four stages.
        num_classes: Number of classes.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
        final_norm: Whether batch normalization and a rectifier follow the last block, as in the paper.
        replace_stride_with_dilation: As for `ResNet`.
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        *,
        num_classes: int = 100,
        width: float = 1.0,
        in_channels: int = 3,
        final_norm: bool = False,
        replace_stride_with_dilation: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        super().__init__(
            PreActBlock,
            depths,
            num_classes=num_classes,
            width=width,
            in_channels=in_channels,
            conv_bias=True,
            replace_stride_with_dilation=replace_stride_with_dilation,
        )
        self.final: nn.Module = nn.Identity()
        if final_norm:
            self.final = nn.Sequential(nn.BatchNorm2d(self.fc.in_features), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.fc(self.avgpool(self.final(self.forward_stages(images)[-1])).flatten(1))
        return logits


NETWORKS = {f"preactresnet{layers}": partial(PreActResNet, DEPTHS[layers]) for layers in (18, 34)}
"""How each of the family's networks is built, by name."""
