"""PSPNet: a dilated ResNet, pooling at four scales, and a class for each pixel.

Paper: Zhao, Shi, Qi, Wang & Jia, "Pyramid Scene Parsing Network", CVPR 2017. The spatial gradient scaling paper trains
it with the code of its first author, https://github.com/hszhao/semseg, whose heads these are: pyramid 1, 2, 3 and 6,
512 channels before the classes, dropout of 0.1, an auxiliary head of 256 channels on the third stage.

What differs from that code:

- The stem is the 7×7 convolution of the ImageNet ResNets of this package, whose weights the backbone loads, instead of
  three 3×3 convolutions.
- The first block of a dilated stage keeps the dilation of the previous stage, as in torchvision, so that the backbone
  computes the maps of its pre-training at the pixels that striding would have kept.
- Any image size works, not only 8n + 1. The pixels of the map correspond to every eighth pixel of the image; beyond the
  last one, its value is repeated. For 8n + 1, this is the interpolation with aligned corners.
- PSPNet-18 and 34, which that code does not have, have the heads of PSPNet-50.

Initialisation: He et al. (ICCV 2015) by fan-out, heads included; the convolutions that compute the classes are normal
with standard deviation 0.01 and their biases are 0.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.models.layers import init_he_, scale_channels
from spatialgrad.models.resnet_encoder import ResNetEncoder

STRIDE = 8
"""Distance between neighbouring pixels of the maps, in pixels of the image."""


class PyramidPooling(nn.Module):
    """The map itself, and its means over grids of increasing resolution.

    Args:
        in_channels: Number of channels of the map; the output has about twice as many.
        bins: Number of grid cells along each side, for each level of the pyramid.
    """

    def __init__(self, in_channels: int, bins: tuple[int, ...] = (1, 2, 3, 6)) -> None:
        super().__init__()
        channels = max(1, in_channels // len(bins))
        self.levels = nn.ModuleList(
            nn.Sequential(
                nn.AdaptiveAvgPool2d(parts),
                nn.Conv2d(in_channels, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            )
            for parts in bins
        )
        self.out_channels = in_channels + channels * len(bins)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map and the means, concatenated."""
        size = x.shape[-2:]
        means = [F.interpolate(level(x), size=size, mode="bilinear", align_corners=True) for level in self.levels]
        return torch.cat([x, *means], dim=1)


class PSPNet(nn.Module):
    """Backbone, pyramid pooling, a head for the classes, and an auxiliary head for training.

    Args:
        layers: Number of weighted layers of the backbone: 18, 34 or 50.
        num_classes: Number of classes of each pixel.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
        dropout: Dropout probability of the channels before the classes.
    """

    def __init__(
        self, layers: int, *, num_classes: int = 19, width: float = 1.0, in_channels: int = 3, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.backbone = ResNetEncoder(layers, width=width, in_channels=in_channels, dilated=True)
        *_, third, fourth = self.backbone.channels
        self.pyramid = PyramidPooling(fourth)
        self.head = _head(self.pyramid.out_channels, scale_channels(512, width), num_classes, dropout)
        self.auxiliary = _head(third, scale_channels(256, width), num_classes, dropout)
        init_he_(self.pyramid)

    def forward(self, images: Tensor, auxiliary: bool | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits, shape (images, classes, height, width).

        Args:
            images: Shape (images, channels, height, width).
            auxiliary: Whether to also return the logits of the auxiliary head; by default in training mode only.
        """
        _, _, third, fourth = self.backbone(images)
        logits = _enlarged(self.head(self.pyramid(fourth)), images)
        if self.training if auxiliary is None else auxiliary:
            return logits, _enlarged(self.auxiliary(third), images)
        return logits


def _head(in_channels: int, channels: int, num_classes: int, dropout: float) -> nn.Sequential:
    classes = nn.Conv2d(channels, num_classes, 1)
    head = nn.Sequential(
        nn.Conv2d(in_channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Dropout2d(dropout),
        classes,
    )
    init_he_(head)
    nn.init.normal_(classes.weight, std=0.01)
    if classes.bias is not None:
        nn.init.zeros_(classes.bias)
    return head


def _enlarged(logits: Tensor, images: Tensor) -> Tensor:
    """Interpolate the logits of every eighth pixel to all pixels of the images."""
    rows, columns = STRIDE * logits.shape[-2] + 1, STRIDE * logits.shape[-1] + 1
    # The last row and column are repeated for the pixels beyond them, then the map is cropped. Padding after the
    # interpolation would give the same, but torch.compile cannot differentiate it.
    longer = torch.cat([logits, logits[..., -1:, :]], dim=-2)
    larger = torch.cat([longer, longer[..., -1:]], dim=-1)
    between = F.interpolate(larger, size=(rows, columns), mode="bilinear", align_corners=True)
    # Later operations would copy it anyway, and FSDP warns about outputs that are views.
    return between[..., : images.shape[-2], : images.shape[-1]].contiguous()


NETWORKS = {f"pspnet{layers}": partial(PSPNet, layers) for layers in (18, 34, 50)}
"""How each of the family's networks is built, by name."""
