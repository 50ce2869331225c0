"""ResNet without its classifier, as the backbone of dense networks: the maps of its four stages.

Its state dict has the names of torchvision's ImageNet ResNets. Weights come from a classification network of this
package, or from a checkpoint of torchvision's networks.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from spatialgrad.models.resnet import DEPTHS, BasicBlock, Bottleneck, ResNet

_CLASSIFIER = "fc."
# Checkpoints from before torch 0.4.1, such as torchvision's own, lack these counters, which nothing reads.
_OPTIONAL = "num_batches_tracked"
_WRAPPERS = ("module.", "_orig_mod.")


class EncoderWeightsError(ValueError):
    """Raised if weights do not match an encoder; the message names the first mismatch and the remedy."""


class ResNetEncoder(ResNet):
    """An ImageNet ResNet without its classifier.

    Args:
        layers: Number of weighted layers of the ResNet: 18, 34 or 50.
        width: Factor on the numbers of channels.
        in_channels: Number of channels of the images.
        dilated: Whether the last two stages dilate their kernels instead of striding; their maps are then an eighth of
            the image instead of a sixteenth and a thirty-second.

    Attributes:
        channels: Numbers of channels of the maps of the four stages.
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
        # Parameters without gradients would make distributed training wait for them.
        del self.avgpool, self.fc
        self.channels = tuple(map(_out_channels, (self.layer1, self.layer2, self.layer3, self.layer4)))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return the output maps of the four stages."""
        return self.forward_stages(images)


def load_encoder_(model: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Load weights into the encoder of a dense network, `model.backbone`, in place.

    Args:
        model: A dense network of this package.
        state: State dict of a ResNet with torchvision's names; its classifier `fc` is ignored. Prefixes that wrappers
            add, and the prefix `backbone.` of a dense network, are removed.
        source: Where the weights come from, for error messages.

    Raises:
        EncoderWeightsError: If a weight is missing, unknown or has another shape. Nothing is loaded then.
    """
    encoder = getattr(model, "backbone", None)
    if not isinstance(encoder, ResNetEncoder):
        raise EncoderWeightsError(f"{type(model).__name__} has no backbone to load the weights of {source} into")
    found = encoder_state(state)
    own = encoder.state_dict()
    way_out = f"{source} must contain an ImageNet ResNet (7×7 stem) of the same depth and width as this backbone"
    for name, value in own.items():
        if name not in found and not name.endswith(_OPTIONAL):
            hint = " (merging branches removes BatchNorms)" if ".bn" in f".{name}" else ""
            raise EncoderWeightsError(f"{source} has no weight {name!r}{hint}; {way_out}")
        if name in found and found[name].shape != value.shape:
            raise EncoderWeightsError(
                f"{name!r} is {_shape(found[name])} in {source}, but {_shape(value)} in this network; {way_out}"
            )
    if unknown := [name for name in found if name not in own]:
        raise EncoderWeightsError(f"{source} has a weight {unknown[0]!r} that this network does not have; {way_out}")
    encoder.load_state_dict({**own, **found})


def encoder_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a ResNet, or of a dense network's encoder, by plain names and without the classifier."""
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
