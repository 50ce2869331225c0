"""ResNet for 32×32 images, and the standard ImageNet ResNets.

Paper: He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.

What differs from the paper: bottleneck blocks stride in the 3×3 convolution instead of the first 1×1 (the
common "v1.5"). `resnet18`, `resnet34` and `resnet50` follow https://github.com/weiaicunzai/pytorch-cifar100: the
ImageNet networks adapted to 32×32 images, not the paper's thinner CIFAR networks; the stem is one 3×3
convolution without stride and pooling.

The ImageNet networks' state dicts have the names of torchvision's, so that its weights can be loaded.

Initialisation: torch's default for the 32×32 networks, as in that code. The ImageNet networks are initialised
as torchvision's: convolutions after He et al. (ICCV 2015) by fan-out, as the paper prescribes, the linear
layer torch's default.
"""

from functools import partial

from torch import Tensor, nn

from spatialgrad.models.layers import init_he_, scale_channels

_CHANNELS = (64, 128, 256, 512)


class ResidualBlock(nn.Module):
    """Base class of a `ResNet`'s blocks: a residual and a shortcut.

    Args:
        in_channels: Number of input channels.
        channels: Number of channels of the 3×3 convolutions.
        stride: Stride of the first 3×3 convolution.
        dilations: Dilation of the first and of the second 3×3 convolution.
        bias: Whether the convolutions have a bias.
    """

    expansion = 1
    """Number of output channels, as a multiple of `channels`."""
    relu: nn.Module
    downsample: nn.Module | None

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        stride: int = 1,
        dilations: tuple[int, int] = (1, 1),
        bias: bool = False,
    ) -> None:
        super().__init__()

    def residual(self, x: Tensor) -> Tensor:
        """Return what the convolutions make of the input."""
        raise NotImplementedError

    def shortcut(self, x: Tensor) -> Tensor:
        """Return the input, in the shape of the residual."""
        y: Tensor = x if self.downsample is None else self.downsample(x)
        return y

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of residual and shortcut."""
        y: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return y


class BasicBlock(ResidualBlock):
    """Two 3×3 convolutions and a shortcut; arguments as for `ResidualBlock`."""

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        stride: int = 1,
        dilations: tuple[int, int] = (1, 1),
        bias: bool = False,
    ) -> None:
        super().__init__(in_channels, channels)
        self.conv1 = conv3x3(in_channels, channels, stride=stride, dilation=dilations[0], bias=bias)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels, dilation=dilations[1], bias=bias)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(in_channels, channels, stride=stride, bias=bias)

    def residual(self, x: Tensor) -> Tensor:
        """Return the output of the second BatchNorm."""
        y: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return y


class Bottleneck(ResidualBlock):
    """A 3×3 convolution between two 1×1 convolutions, and a shortcut; arguments as for `ResidualBlock`.

    The second dilation is not used.
    """

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        stride: int = 1,
        dilations: tuple[int, int] = (1, 1),
        bias: bool = False,
    ) -> None:
        super().__init__(in_channels, channels)
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=bias)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels, stride=stride, dilation=dilations[0], bias=bias)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=bias)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(in_channels, out_channels, stride=stride, bias=bias)

    def residual(self, x: Tensor) -> Tensor:
        """Return the output of the third BatchNorm."""
        y: Tensor = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return y


def conv3x3(
    in_channels: int, out_channels: int, *, stride: int = 1, dilation: int = 1, bias: bool = False
) -> nn.Conv2d:
    """Return a 3×3 convolution that keeps the size of the map at stride 1."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=dilation, dilation=dilation, bias=bias)


def projection(in_channels: int, out_channels: int, *, stride: int, bias: bool) -> nn.Sequential | None:
    """Return the 1×1 convolution of a shortcut that changes the map's shape; None if the identity suffices."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=bias), nn.BatchNorm2d(out_channels)
    )


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, average pooling and one linear layer.

    Args:
        block: Class of the blocks.
        depths: Number of blocks in each of the four stages.
        num_classes: Number of classes.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
        imagenet: Whether to build the ImageNet network, whose stem is a 7×7 convolution and a pooling, each
            with stride 2, instead of a 3×3 convolution, and whose convolutions have He initialisation.
        conv_bias: Whether the convolutions, which batch normalization follows, have a bias.
        replace_stride_with_dilation: For each of the last three stages, whether it dilates its kernels instead
            of striding, which keeps the size of the map; at the pixels that striding would have kept, the maps
            are the same. `(False, True, True)` is common for dense prediction.
    """

    def __init__(
        self,
        block: type[ResidualBlock],
        depths: tuple[int, int, int, int],
        *,
        num_classes: int = 100,
        width: float = 1.0,
        in_channels: int = 3,
        imagenet: bool = False,
        conv_bias: bool = False,
        replace_stride_with_dilation: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        super().__init__()
        channels = [scale_channels(count, width) for count in _CHANNELS]
        self.conv1: nn.Module
        self.maxpool: nn.Module
        if imagenet:
            self.conv1 = nn.Conv2d(in_channels, channels[0], 7, stride=2, padding=3, bias=conv_bias)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = conv3x3(in_channels, channels[0], bias=conv_bias)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = nn.ReLU(inplace=True)
        previous = channels[0]
        dilation = 1
        stages: list[nn.Sequential] = []
        for stage, (depth, count) in enumerate(zip(depths, channels, strict=True)):
            stride = 1 if stage == 0 else 2
            first_dilation = dilation
            if stage > 0 and replace_stride_with_dilation[stage - 1]:
                stride, dilation = 1, 2 * dilation
            blocks = [block(previous, count, stride=stride, dilations=(first_dilation, dilation), bias=conv_bias)]
            previous = count * block.expansion
            blocks += [block(previous, count, dilations=(dilation, dilation), bias=conv_bias) for _ in range(depth - 1)]
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(previous, num_classes)
        if imagenet:
            init_he_(self)

    def forward_stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the output maps of the four stages."""
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        map1 = self.layer1(stem)
        map2 = self.layer2(map1)
        map3 = self.layer3(map2)
        return map1, map2, map3, self.layer4(map3)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.fc(self.avgpool(self.forward_stages(images)[-1]).flatten(1))
        return logits


DEPTHS: dict[int, tuple[int, int, int, int]] = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
"""Number of blocks in the four stages, by the number of weighted layers in the network's name."""

_SMALL = {
    f"resnet{layers}": partial(ResNet, Bottleneck if layers >= 50 else BasicBlock, depths)
    for layers, depths in DEPTHS.items()
}
NETWORKS = {**_SMALL, **{f"{name}-imagenet": partial(build, imagenet=True) for name, build in _SMALL.items()}}
"""How each of the family's networks is built, by name."""
