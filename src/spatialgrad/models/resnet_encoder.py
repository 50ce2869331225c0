"""ResNet as the backbone of dense prediction: the maps of its four stages, and weights from elsewhere.

A backbone's state dict has the names of torchvision's ImageNet ResNets without the classifier. Weights come from a
classification network of this package, or from a checkpoint file that torchvision's networks can load.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from spatialgrad.models.resnet import DEPTHS, BasicBlock, Bottleneck, ResNet

_CLASSIFIER = "fc."
# Checkpoints from before torch 0.4.1, such as torchvision's own, do not have these counters, which no one reads.
_OPTIONAL = "num_batches_tracked"
_WRAPPERS = ("module.", "_orig_mod.")


class BackboneError(ValueError):
    """Weights do not fit a backbone; the message names the first that does not, and the way out."""


class Backbone(ResNet):
    """An ImageNet ResNet without its classifier.

    Args:
        layers: 18, 34 or 50.
        width: Factor on the channels.
        in_channels: Channels of the images.
        dilated: Whether the last two stages keep the size of the map and dilate their kernels instead of striding:
            the maps are then an eighth of the image, instead of a thirty-second.

    Attributes:
        channels: Channels of the maps of the four stages.
    """

    def __init__(self, layers: int, *, width: float = 1.0, in_channels: int = 3, dilated: bool = False) -> None:
        super().__init__(
            Bottleneck if layers >= 50 else BasicBlock,
            DEPTHS[layers],
            num_classes=1,
            width=width,
            in_channels=in_channels,
            imagenet=True,
            replace_stride_with_dilation=(False, dilated, dilated),
        )
        # Weights that no loss reaches would keep processes that train together waiting for their gradients.
        del self.avgpool, self.fc
        self.channels = tuple(map(_out_channels, (self.layer1, self.layer2, self.layer3, self.layer4)))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return the output maps of the four stages."""
        return self.forward_stages(images)


def load_backbone_(model: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Load weights into `model.backbone`, in place.

    Args:
        model: A dense network of this package.
        state: Of a ResNet, with the names of torchvision; its classifier `fc` is left out. The prefixes that
            wrappers add, and `backbone.` of a dense network, are taken off.
        source: Where the weights come from, for errors.

    Raises:
        BackboneError: If a weight is missing, unknown or of another shape; nothing has been loaded then.
    """
    backbone = getattr(model, "backbone", None)
    if not isinstance(backbone, Backbone):
        raise BackboneError(f"{type(model).__name__} has no backbone that weights from {source} could go to")
    found = backbone_state(state)
    own = backbone.state_dict()
    way_out = (
        f"{source} must hold a ResNet for ImageNet (7×7 stem) of the same depth and width as this network's backbone"
    )
    for name, value in own.items():
        if name not in found and not name.endswith(_OPTIONAL):
            hint = " (branches that were merged have no BatchNorm any more)" if ".bn" in f".{name}" else ""
            raise BackboneError(f"{source} has no weight {name!r}{hint}; {way_out}")
        if name in found and found[name].shape != value.shape:
            raise BackboneError(
                f"{name!r} is {_shape(found[name])} in {source}, but {_shape(value)} in this network; {way_out}"
            )
    if unknown := [name for name in found if name not in own]:
        raise BackboneError(f"{source} has a weight {unknown[0]!r} that this network does not have; {way_out}")
    backbone.load_state_dict({**own, **found})


def backbone_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a ResNet, or of a dense network's backbone, under their plain names and without the classifier."""
    plain = {_plain(name): value for name, value in state.items()}
    own = {name: value for name, value in plain.items() if name.startswith("backbone.")}
    chosen = {name.removeprefix("backbone."): value for name, value in own.items()} or plain
    return {name: value for name, value in chosen.items() if not name.startswith(_CLASSIFIER)}


def _plain(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _shape(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "a number"


def _out_channels(stage: nn.Module) -> int:
    return [module for module in stage.modules() if isinstance(module, nn.BatchNorm2d)][-1].num_features
