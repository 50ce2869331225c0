"""The networks of timm and torchvision. Each library is imported when one of its networks is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from spatialgrad.models.outside.errors import ModelError, describe_error
from spatialgrad.models.outside.wanted import Wanted
from spatialgrad.torch_utils.names import did_you_mean

CACHES = "Without a network connection, copy them to the library's cache first (HF_HOME, TORCH_HOME)."


class Library(Protocol):
    """A library of networks."""

    def build(self, name: str, wanted: Wanted) -> nn.Module:
        """Build a network."""

    def names(self, pattern: str) -> list[str]:
        """The names of the networks that match a shell pattern."""


class Timm:
    """https://github.com/huggingface/pytorch-image-models."""

    def build(self, name: str, wanted: Wanted) -> nn.Module:
        """Build a network; a tag after a dot chooses between its pre-trained weights."""
        timm = import_library("timm")
        self._check_name(timm, name)
        if "in_chans" in wanted.options:
            raise ModelError("in_chans cannot be set: it is the number of channels of the images", "options")
        if "checkpoint_path" in wanted.options:
            raise ModelError(
                "checkpoint_path would be read again whenever the network is built again; use pretrained weights, "
                "with the option pretrained_cfg_overlay={'file': PATH}",
                "options",
            )
        overlaid = "pretrained_cfg" in wanted.options or "pretrained_cfg_overlay" in wanted.options
        if wanted.pretrained and not overlaid and not timm.models.is_model_pretrained(name):
            raise ModelError(f"timm has no pre-trained weights for {name}", "pretrained")
        arguments: dict[str, Any] = {"num_classes": wanted.num_classes}
        if wanted.in_channels != 3:
            arguments["in_chans"] = wanted.in_channels

        def create(weights: bool) -> nn.Module:
            network: nn.Module = timm.create_model(name, pretrained=weights, **arguments, **wanted.options)
            return network

        return _attempt(create, f"timm:{name}", wanted)

    def names(self, pattern: str) -> list[str]:
        """The names of the architectures; with a dot in the pattern, those of the pre-trained weights."""
        return list(import_library("timm").list_models(pattern, pretrained="." in pattern))

    @staticmethod
    def _check_name(timm: Any, name: str) -> None:
        architecture, _, tag = name.partition(".")
        if not timm.is_model(architecture):
            known = "spatialgrad model list 'timm:*' lists them"
            raise ModelError(f"timm has no network {architecture!r}; {_hint('timm', name, timm.list_models(), known)}")
        tagged = timm.list_pretrained(f"{architecture}.*")
        if tag and name not in tagged:
            weights = f"its weights are {', '.join(tagged)}" if tagged else "it has none"
            raise ModelError(f"timm has no weights {name!r}; {weights}")


class Torchvision:
    """https://github.com/pytorch/vision."""

    def build(self, name: str, wanted: Wanted) -> nn.Module:
        """Build a network; the option `weights` chooses between its pre-trained weights."""
        models = import_library("torchvision.models")
        known = models.list_models(module=models)
        if name not in known:
            if name in models.list_models():
                raise ModelError(f"torchvision's {name} is no network for classification of images")
            otherwise = "spatialgrad model list 'torchvision:*' lists them"
            raise ModelError(f"torchvision has no network {name!r}; {_hint('torchvision', name, known, otherwise)}")
        if wanted.in_channels != 3:
            raise ModelError(
                f"torchvision's networks take images with 3 channels, not {wanted.in_channels}; those of timm take any "
                "number",
                "in_channels",
            )
        chosen = wanted.options.get("weights")
        if chosen is not None and not wanted.pretrained:
            raise ModelError("weights chooses between pre-trained weights, which are not asked for", "options")
        arguments = {key: value for key, value in wanted.options.items() if key != "weights"}
        if wanted.num_classes is not None:
            arguments["num_classes"] = wanted.num_classes

        def create(weights: bool) -> nn.Module:
            network: nn.Module = models.get_model(name, weights=None, **arguments)
            if weights:
                load_weights_(network, self._weights(models, name, chosen).get_state_dict(check_hash=True))
            return network

        return _attempt(create, f"torchvision:{name}", wanted)

    def names(self, pattern: str) -> list[str]:
        """The names of the networks for classification."""
        models = import_library("torchvision.models")
        return list(models.list_models(module=models, include=pattern))

    @staticmethod
    def _weights(models: Any, name: str, chosen: Any) -> Any:
        weights = models.get_model_weights(name)
        if chosen is None:
            return weights.DEFAULT
        if chosen not in weights.__members__:
            raise ModelError(f"weights must be one of {', '.join(weights.__members__)}, not {chosen!r}", "options")
        return weights[chosen]


def load_weights_(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Load pre-trained weights into a network whose last layer may have another number of classes, in place.

    Tensors whose first dimension alone differs, the classes, keep their initial values.

    Raises:
        ModelError: If the weights do not fit otherwise.
    """
    own = model.state_dict()
    missing = [key for key in own if key not in weights]
    if missing:
        raise ModelError(f"the pre-trained weights lack {', '.join(missing[:3])}", "pretrained")
    fitting = {key: weights[key] for key, value in own.items() if weights[key].shape == value.shape}
    wrong = [key for key, value in own.items() if key not in fitting and weights[key].shape[1:] != value.shape[1:]]
    if wrong:
        raise ModelError(f"the pre-trained weights have other shapes in {', '.join(wrong[:3])}", "pretrained")
    model.load_state_dict(fitting, strict=False)


LIBRARIES: Mapping[str, Library] = {"timm": Timm(), "torchvision": Torchvision()}
"""By the prefix of their networks' names."""


def import_library(name: str) -> Any:
    """Import a library.

    Raises:
        ModelError: If it is missing, or broken.
    """
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)  # first: what is missing is else called a part of it
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ModelError(f"{package} is not installed: pip install {package}") from error
        raise ModelError(f"{package} cannot be imported ({describe_error(error)})") from error
    except Exception as error:  # a library that was built for another torch may raise anything
        raise ModelError(
            f"{package} cannot be imported ({describe_error(error)}); it may not fit torch {torch.__version__}"
        ) from error


def _attempt(create: Callable[[bool], nn.Module], name: str, wanted: Wanted) -> nn.Module:
    """Call a library; of its errors, blame the argument at fault."""
    try:
        return create(wanted.pretrained)
    except ModelError:
        raise
    except Exception as error:
        reason = describe_error(error)
        if wanted.pretrained and _works(lambda: create(False)):
            raise ModelError(
                f"the pre-trained weights of {name} cannot be loaded ({reason}). {CACHES}", "pretrained"
            ) from error
        options = wanted.options
        argument = "options" if options else "name" if wanted.in_channels == 3 else "in_channels"
        given = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
        channels = "" if wanted.in_channels == 3 else f" for images with {wanted.in_channels} channels"
        raise ModelError(f"{name} cannot be built{given}{channels} ({reason})", argument) from error


def _works(function: Callable[[], object]) -> bool:
    try:
        function()
    except Exception:
        return False
    return True


def _hint(library: str, name: str, known: list[str], otherwise: str) -> str:
    return did_you_mean(f"{library}:{name}", [f"{library}:{each}" for each in known], otherwise=otherwise, most=3)
