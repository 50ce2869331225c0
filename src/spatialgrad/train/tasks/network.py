"""The network of a config; errors name the flag at fault."""

from __future__ import annotations

from torch import nn

from spatialgrad.models import ModelError, create_model
from spatialgrad.models.external import describe_error
from spatialgrad.train.config.groups import ModelConfig
from spatialgrad.train.config.validation import flag
from spatialgrad.train.errors import ConfigError


def build_network(
    config: ModelConfig, *, num_classes: int | None, in_channels: int, pretrained: bool = False
) -> nn.Module:
    """Build the network that a config names.

    Args:
        config: Of the network.
        num_classes: Number of outputs; by default the network's own.
        in_channels: Number of channels of the images.
        pretrained: Load pre-trained weights. Not for a network whose weights are loaded from a checkpoint next.

    Raises:
        ConfigError: If it cannot be built.
    """
    options = config.parsed_options
    try:
        return create_model(
            config.name,
            num_classes=num_classes,
            width=config.width,
            in_channels=in_channels,
            pretrained=pretrained,
            **options,
        )
    except ModelError as error:
        raise ConfigError(f"{_typed(config, error.argument)}: {error}") from error
    except (TypeError, ValueError) as error:
        if not options:
            raise
        # Of a network of the package, whose class does not take these options.
        given, reason = " ".join(config.options), describe_error(error)
        raise ConfigError(f"{flag('model.options')} {given}: {config.name} does not accept this ({reason})") from error


def _typed(config: ModelConfig, argument: str) -> str:
    """What the user typed for an argument of `create_model`."""
    if argument == "pretrained":
        return flag("model.pretrained")
    if argument == "options":
        return " ".join((flag("model.options"), *config.options))
    return f"{flag('model.name')} {config.name}"
