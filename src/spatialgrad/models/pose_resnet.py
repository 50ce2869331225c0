"""The pose ResNet ("MSRA ResNet"): a ResNet, three transposed convolutions, and a heat map for each joint.

Paper: Xiao, Wu & Wei, "Simple Baselines for Human Pose Estimation and Tracking", ECCV 2018.

What differs from the paper: nothing in the network. It accepts any image whose sides are multiples of 32; the heat maps
are a quarter as high and wide.

Spatial gradient scaling does not apply to transposed convolutions, which spread values instead of gathering them. They
are not scaled, and `SpatialGradientScaling.skipped` lists them.

Initialisation: He et al. (ICCV 2015) by fan-out for the backbone; as in the paper, all other weights are normal with
standard deviation 0.001 and biases are 0.
"""

from functools import partial

from torch import Tensor, nn

from spatialgrad.models.layers import scale_channels
from spatialgrad.models.resnet import DEPTHS
from spatialgrad.models.resnet_encoder import ResNetEncoder

MAP_STRIDE = 4
"""Ratio of the image's sides to the heat maps' sides."""
_CHANNELS = 256
_INIT_STD = 0.001


class PoseResNet(nn.Module):
    """A ResNet backbone, three transposed convolutions, and a 1×1 convolution that computes heat maps.

    Args:
        layers: Number of weighted layers of the backbone: 18, 34 or 50.
        num_classes: Number of joints.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
    """

    def __init__(self, layers: int, *, num_classes: int = 16, width: float = 1.0, in_channels: int = 3) -> None:
        super().__init__()
        self.backbone = ResNetEncoder(layers, width=width, in_channels=in_channels)
        previous, channels = self.backbone.channels[-1], scale_channels(_CHANNELS, width)
        parts: list[nn.Module] = []
        for _ in range(3):
            parts += [
                nn.ConvTranspose2d(previous, channels, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
            previous = channels
        self.upsample = nn.Sequential(*parts)
        self.head = nn.Conv2d(channels, num_classes, 1)
        for module in (*self.upsample, self.head):
            if isinstance(module, (nn.ConvTranspose2d, nn.Conv2d)):
                nn.init.normal_(module.weight, std=_INIT_STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the heat maps, shape (images, joints, height / 4, width / 4)."""
        maps: Tensor = self.head(self.upsample(self.backbone(images)[-1]))
        return maps


NETWORKS = {f"poseresnet{layers}": partial(PoseResNet, layers) for layers in DEPTHS}
"""How each of the family's networks is built, by name."""
