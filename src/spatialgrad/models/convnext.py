"""ConvNeXt, for 32×32 images and for ImageNet: depthwise 7×7 convolutions, and none but these in its blocks.

Paper: Liu, Mao, Wu, Feichtenhofer, Darrell & Xie, "A ConvNet for the 2020s", CVPR 2022.

Definition: follows the paper; numbers of channels and blocks are those of the Atto variant that Woo et al. introduced
with ConvNeXt V2 (CVPR 2023). For 32×32 images, the stem has patches of 2×2 pixels instead of 4×4, so that the last
stage sees 2×2 pixels. Stochastic depth is left out.

Initialisation: as in the paper, normal with standard deviation 0.02, cut off at 2; biases are 0.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spatialgrad.models.layers import scale_channels

_CHANNELS = (40, 80, 160, 320)
_DEPTHS = (2, 2, 6, 2)
_EXPANSION = 4
_EPS = 1e-6


class ChannelNorm(nn.LayerNorm):
    """Layer normalization over the channels of a map, at each pixel."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized map, in the memory format of the input."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7 convolution, normalization, and two linear layers at each pixel, added to the input.

    Args:
        channels: Number of input and output channels.
        layer_scale: Initial factor on the residual.
    """

    def __init__(self, channels: int, *, layer_scale: float = 1e-6) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=_EPS)
        self.expand = nn.Linear(channels, _EXPANSION * channels)
        self.gelu = nn.GELU()
        self.project = nn.Linear(_EXPANSION * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), layer_scale))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of input and residual."""
        pixels = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        residual: Tensor = self.scale * self.project(self.gelu(self.expand(pixels)))
        return x + residual.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A stem of patches, four stages that each halve the resolution, average pooling, normalization and a linear layer.

    Args:
        num_classes: Number of classes.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
        patch: Side of the patches of the stem.
        layer_scale: Initial factor on the residuals.
    """

    def __init__(
        self,
        *,
        num_classes: int = 100,
        width: float = 1.0,
        in_channels: int = 3,
        patch: int = 2,
        layer_scale: float = 1e-6,
    ) -> None:
        super().__init__()
        previous = scale_channels(_CHANNELS[0], width)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, previous, patch, stride=patch), ChannelNorm(previous, eps=_EPS)
        )
        layers: list[nn.Module] = []
        for stage, depth in enumerate(_DEPTHS):
            channels = scale_channels(_CHANNELS[stage], width)
            if stage:
                layers += [ChannelNorm(previous, eps=_EPS), nn.Conv2d(previous, channels, 2, stride=2)]
            layers += [ConvNeXtBlock(channels, layer_scale=layer_scale) for _ in range(depth)]
            previous = channels
        self.stages = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.norm = nn.LayerNorm(previous, eps=_EPS)
        self.fc = nn.Linear(previous, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (images, classes)."""
        logits: Tensor = self.fc(self.norm(self.pool(self.stages(self.stem(images))).flatten(1)))
        return logits


NETWORKS = {"convnext-atto": ConvNeXt, "convnext-atto-imagenet": partial(ConvNeXt, patch=4)}
"""How each of the family's networks is built, by name."""
