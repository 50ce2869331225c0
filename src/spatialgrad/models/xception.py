"""Xception for 32×32 images.

Paper: Chollet, "Xception: Deep Learning with Depthwise Separable Convolutions", CVPR 2017.

Definition: follows https://github.com/weiaicunzai/pytorch-cifar100. What differs from the paper: neither the
stem nor the third block of the entry flow strides, so that the middle flow sees 8×8 pixels of a 32×32 image;
the 1×1 convolutions of the shortcuts have a bias. What differs from that code: its rectifiers in the entry and
middle flow work in place and therefore rectify the shortcuts too; here, as in the paper, they do not.

Initialisation: torch's default, as in that code; the paper prescribes none.
"""

from itertools import pairwise

from torch import Tensor, nn

from spatialgrad.models.layers import scale_channels

_MIDDLE_BLOCKS = 8


class SeparableConv2d(nn.Sequential):
    """A depthwise 3×3 convolution followed directly by a 1×1 convolution.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, in_channels, 3, padding=1, groups=in_channels, bias=False),
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
        )


class XceptionBlock(nn.Module):
    """Separable convolutions, each between a rectifier and a batch normalization, and a shortcut.

    Args:
        channels: Numbers of channels of the input and of each convolution's output.
        pool_stride: Stride of the final 3×3 max pooling; no pooling if None.
        rectify_input: Whether a rectifier precedes the first convolution.
    """

    def __init__(
        self, channels: tuple[int, ...], *, pool_stride: int | None = None, rectify_input: bool = True
    ) -> None:
        super().__init__()
        residual: list[nn.Module] = []
        for position, (before, after) in enumerate(pairwise(channels)):
            if position > 0 or rectify_input:
                # The first rectifier must not work in place: the shortcut needs the unchanged input.
                residual.append(nn.ReLU(inplace=position > 0))
            residual += [SeparableConv2d(before, after), nn.BatchNorm2d(after)]
        if pool_stride is not None:
            residual.append(nn.MaxPool2d(3, stride=pool_stride, padding=1))
        self.residual = nn.Sequential(*residual)
        self.shortcut: nn.Module = nn.Identity()
        stride = pool_stride or 1
        if stride > 1 or channels[0] != channels[-1]:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels[0], channels[-1], 1, stride=stride),
                nn.BatchNorm2d(channels[-1]),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of residual and shortcut."""
        y: Tensor = self.residual(x) + self.shortcut(x)
        return y


class Xception(nn.Module):
    """Entry flow, middle flow of eight equal blocks, exit flow, average pooling and one linear layer.

    Args:
        num_classes: Number of classes.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
    """

    def __init__(self, *, num_classes: int = 100, width: float = 1.0, in_channels: int = 3) -> None:
        super().__init__()
        c32, c64, c128, c256, c728, c1024, c1536, c2048 = (
            scale_channels(channels, width) for channels in (32, 64, 128, 256, 728, 1024, 1536, 2048)
        )
        self.entry = nn.Sequential(
            nn.Conv2d(in_channels, c32, 3, padding=1, bias=False),
            nn.BatchNorm2d(c32),
            nn.ReLU(inplace=True),
            nn.Conv2d(c32, c64, 3, padding=1, bias=False),
            nn.BatchNorm2d(c64),
            nn.ReLU(inplace=True),
            XceptionBlock((c64, c128, c128), pool_stride=2, rectify_input=False),
            XceptionBlock((c128, c256, c256), pool_stride=2),
            XceptionBlock((c256, c728, c728), pool_stride=1),
        )
        self.middle = nn.Sequential(*(XceptionBlock((c728,) * 4) for _ in range(_MIDDLE_BLOCKS)))
        self.exit = nn.Sequential(
            XceptionBlock((c728, c728, c1024), pool_stride=2),
            SeparableConv2d(c1024, c1536),
            nn.BatchNorm2d(c1536),
            nn.ReLU(inplace=True),
            SeparableConv2d(c1536, c2048),
            nn.BatchNorm2d(c2048),
            nn.ReLU(inplace=True),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(c2048, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.fc(self.pool(self.exit(self.middle(self.entry(images)))).flatten(1))
        return logits


NETWORKS = {"xception": Xception}
"""How each of the family's networks is built, by name."""
