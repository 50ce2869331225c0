"""Networks from other sources: `timm:NAME`, `torchvision:NAME` and the user's own `package.module:function`.

Importing this file imports neither torch nor a library: configs check names with it.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgrad.utils.text import (
    UserCodeError,
    describe_error,
    did_you_mean,
    find_object,
    import_user_module,
    is_object_name,
    place_of,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

LIBRARIES = ("timm", "torchvision")
"""The libraries whose networks have names."""
FORMS = "timm:NAME, torchvision:NAME or package.module:function"
CACHES = "Without a network connection, copy them to the library's cache first (HF_HOME, TORCH_HOME)."


class ModelError(ValueError):
    """A network cannot be built; the message says why and what to do.

    Args:
        message: The reason.
        argument: The argument of `create_model` at fault: `name`, `options`, `pretrained` or `in_channels`.
    """

    def __init__(self, message: str, argument: str = "name") -> None:
        super().__init__(message)
        self.argument = argument


def is_external(name: str) -> bool:
    """Whether a name is that of an external network; all others are in the registry."""
    return ":" in name


def check_form(name: str) -> None:
    """Raise `ModelError` unless an external network may have this name; nothing is imported."""
    source, _, rest = name.partition(":")
    if source in LIBRARIES:
        valid = bool(rest) and not any(character.isspace() or character in ":/*?" for character in rest)
    else:
        valid = is_object_name(name)
    if not valid:
        raise ModelError(f"{name!r} does not have the form {FORMS}")


def build_external(
    name: str, *, num_classes: int | None, in_channels: int, pretrained: bool, options: Mapping[str, Any]
) -> nn.Module:
    """Build an external network; the arguments are those of `create_model`.

    Raises:
        ModelError: If it cannot be built; the message says why.
    """
    check_form(name)
    source, _, rest = name.partition(":")
    if source not in LIBRARIES:
        return _call_function(name, num_classes, in_channels, pretrained, options)
    build = _build_timm if source == "timm" else _build_torchvision
    try:
        return build(rest, num_classes, in_channels, pretrained, options)
    except ModelError:
        raise
    except Exception as error:  # whatever the library raises
        reason = describe_error(error)
        if pretrained and not isinstance(error, TypeError):  # which an unknown option causes
            reason = f"the pre-trained weights of {name} cannot be loaded ({reason}). {CACHES}"
            raise ModelError(reason, "pretrained") from error
        argument = "options" if options else "name" if in_channels == 3 else "in_channels"
        given = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
        channels = "" if in_channels == 3 else f" for images with {in_channels} channels"
        raise ModelError(f"{name} cannot be built{given}{channels} ({reason})", argument) from error


def list_external(pattern: str) -> list[str]:
    """The names of a library's networks that match a pattern such as `timm:resnet*`; all without one after the colon.

    With a dot in the pattern, timm's pre-trained weights are listed instead of its architectures.

    Raises:
        ModelError: If the library is unknown, or cannot be imported.
    """
    source, _, rest = pattern.partition(":")
    rest = rest or "*"
    if source == "timm":
        names = import_library("timm").list_models(rest, pretrained="." in rest)
    elif source == "torchvision":
        models = import_library("torchvision.models")
        names = models.list_models(module=models, include=rest)
    else:
        raise ModelError(f"only the networks of {' and '.join(LIBRARIES)} can be listed, not those of {source!r}")
    return [f"{source}:{name}" for name in names]


def describe_source(name: str) -> dict[str, str]:
    """The code that an external network comes from: the library and its version, or the file and its hash."""
    source = name.partition(":")[0]
    if source in LIBRARIES:
        return {"library": source, "version": metadata.version(source)}
    file = getattr(import_user_module(source), "__file__", None)
    return {} if file is None else {"file": str(file), "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}


# Libraries


def import_library(name: str) -> Any:
    """Import a library.

    Raises:
        ModelError: If it is missing, or broken.
    """
    import torch

    package = name.partition(".")[0]
    try:
        importlib.import_module(package)  # first: otherwise a missing package is reported as a part of itself
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ModelError(f"{package} is not installed: pip install {package}") from error
        raise ModelError(f"{package} cannot be imported ({describe_error(error)})") from error
    except Exception as error:  # a library that was built for another torch may raise anything
        raise ModelError(
            f"{package} cannot be imported ({describe_error(error)}); it may not fit torch {torch.__version__}"
        ) from error


def _build_timm(
    name: str, num_classes: int | None, in_channels: int, pretrained: bool, options: Mapping[str, Any]
) -> nn.Module:
    """Build a network of https://github.com/huggingface/pytorch-image-models; a tag after a dot selects weights."""
    timm = import_library("timm")
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise ModelError(f"timm has no network {architecture!r}; {_similar('timm', name, timm.list_models())}")
    tagged = timm.list_pretrained(f"{architecture}.*")
    if tag and name not in tagged:
        weights = f"its weights are {', '.join(tagged)}" if tagged else "it has none"
        raise ModelError(f"timm has no weights {name!r}; {weights}")
    if "in_chans" in options:
        raise ModelError("in_chans cannot be set: it is the number of channels of the images", "options")
    if "checkpoint_path" in options:
        raise ModelError(
            "checkpoint_path would be read again whenever the network is built again; use pre-trained weights, with "
            "the option pretrained_cfg_overlay={'file': PATH}",
            "options",
        )
    overlaid = "pretrained_cfg" in options or "pretrained_cfg_overlay" in options
    if pretrained and not overlaid and not timm.models.is_model_pretrained(name):
        raise ModelError(f"timm has no pre-trained weights for {name}", "pretrained")
    channels = {} if in_channels == 3 else {"in_chans": in_channels}
    network: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, **channels, **options)
    return network


def _build_torchvision(
    name: str, num_classes: int | None, in_channels: int, pretrained: bool, options: Mapping[str, Any]
) -> nn.Module:
    """Build a network of https://github.com/pytorch/vision; the option `weights` selects pre-trained weights."""
    models = import_library("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        if name in models.list_models():
            raise ModelError(f"torchvision's {name} is not an image classification model")
        raise ModelError(f"torchvision has no network {name!r}; {_similar('torchvision', name, known)}")
    if in_channels != 3:
        raise ModelError(
            f"torchvision's networks take images with 3 channels, not {in_channels}; timm's take any number",
            "in_channels",
        )
    arguments = {key: value for key, value in options.items() if key != "weights"}
    if num_classes is not None:
        arguments["num_classes"] = num_classes
    chosen = options.get("weights")
    if chosen is not None and not pretrained:
        raise ModelError("weights selects pre-trained weights, but pretrained is not set", "options")
    network: nn.Module = models.get_model(name, weights=None, **arguments)
    if pretrained:
        weights = models.get_model_weights(name)
        if chosen is not None and chosen not in weights.__members__:
            raise ModelError(f"weights must be one of {', '.join(weights.__members__)}, not {chosen!r}", "options")
        selected = weights.DEFAULT if chosen is None else weights[chosen]
        _load_weights_(network, selected.get_state_dict(check_hash=True))
    return network


def _load_weights_(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load pre-trained weights into a network whose last layer may have another number of classes, in place.

    Tensors that differ in their first dimension only, the classes, keep their initial values.
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


def _similar(library: str, name: str, known: list[str]) -> str:
    otherwise = f"spatialgrad model list '{library}:*' lists them"
    return did_you_mean(f"{library}:{name}", [f"{library}:{each}" for each in known], otherwise=otherwise, most=3)


# Functions of the user's


def _call_function(
    name: str, num_classes: int | None, in_channels: int, pretrained: bool, options: Mapping[str, Any]
) -> nn.Module:
    """Call a function with the number of classes, and with `in_channels` and `pretrained` where it takes them."""
    from torch import nn

    function = _find_function(name)
    arguments = dict(options)
    if num_classes is not None:
        arguments["num_classes"] = num_classes
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # it does not say
        parameters = None
    if parameters is not None:
        if pretrained and "pretrained" not in parameters:
            raise ModelError(f"{name} has no parameter `pretrained`", "pretrained")
        known = {"in_channels": in_channels, "pretrained": pretrained}
        arguments |= {key: value for key, value in known.items() if key in parameters}
        _check_arguments(name, parameters, arguments, options)
    try:
        model = function(**arguments)
    except Exception as error:  # it is the user's code
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise ModelError(f"{name}({given}) failed: {describe_error(error)}{place_of(error, __file__)}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} must return a torch.nn.Module, not {type(model).__name__}")
    return model


def _find_function(name: str) -> Callable[..., Any]:
    try:
        found = find_object(name, known=LIBRARIES)
    except UserCodeError as error:
        raise ModelError(str(error)) from error.__cause__
    if not callable(found):
        raise ModelError(f"{name} has type {type(found).__name__} and is not a function")
    function: Callable[..., Any] = found
    return function


def _check_arguments(
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [key for key, parameter in parameters.items() if parameter.kind in by_name]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if "num_classes" in arguments and "num_classes" not in named and not takes_any:
        raise ModelError(f"{name} must take `num_classes`, the number of classes of the data set")
    unknown = [key for key in options if key not in named]
    if unknown and not takes_any:
        hint = did_you_mean(unknown[0], named, otherwise=f"it takes {', '.join(named)}")
        raise ModelError(f"{name} has no parameter {unknown[0]!r}; {hint}", "options")
    required = [key for key in named if parameters[key].default is inspect.Parameter.empty]
    missing = [key for key in required if key not in arguments]
    if missing:
        raise ModelError(f"{name} needs a value for {', '.join(map(repr, missing))}", "options")
