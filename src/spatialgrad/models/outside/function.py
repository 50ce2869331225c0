"""A network from a function of the user's, named `package.module:function`."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from spatialgrad.models.outside.errors import ModelError, describe_error
from spatialgrad.models.outside.wanted import Wanted
from spatialgrad.torch_utils import user_modules
from spatialgrad.torch_utils.names import did_you_mean

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def build_from_function(name: str, wanted: Wanted) -> nn.Module:
    """Call a function with the number of classes, and with `in_channels` and `pretrained` where it takes them.

    Args:
        name: `package.module:function`; a class works as well.
        wanted: Its options are further keyword arguments.

    Raises:
        ModelError: If there is no such function, it does not take these arguments, or it returns no network.
    """
    function = find_function(name)
    arguments = dict(wanted.options)
    if wanted.num_classes is not None:
        arguments["num_classes"] = wanted.num_classes
    parameters = _parameters(function)
    if parameters is not None:
        if wanted.pretrained and "pretrained" not in parameters:
            raise ModelError(f"{name} has no parameter `pretrained`", "pretrained")
        known = {"in_channels": wanted.in_channels, "pretrained": wanted.pretrained}
        arguments |= {key: value for key, value in known.items() if key in parameters}
        _check_arguments(name, parameters, arguments, wanted.options)
    try:
        model = function(**arguments)
    except Exception as error:  # it is the user's code
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise ModelError(f"{name}({given}) failed: {describe_error(error)}{_place(error)}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} must return a torch.nn.Module, not {type(model).__name__}")
    return model


def find_function(name: str) -> Callable[..., Any]:
    """Import a function, also from the working directory, where `python -m` would find it.

    Raises:
        ModelError: If there is none.
    """
    module_name, _, path = name.partition(":")
    found: Any = _import(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            names = [each for each, value in vars(found).items() if callable(value) and not each.startswith("_")]
            hint = did_you_mean(part, names, otherwise="check the name after the colon")
            raise ModelError(f"{module_name} has no function {path!r}; {hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ModelError(f"{path!r} of {module_name} is no function, but of type {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def describe_function(name: str) -> dict[str, str]:
    """The file that defines a function's module, and a hash of its content."""
    module_name = name.partition(":")[0]
    file = getattr(_import(module_name), "__file__", None)
    if file is None:
        return {}
    return {"file": str(file), "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}


def _import(module: str) -> Any:
    try:
        return user_modules.import_user_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            way_out = "run the command in the folder that contains it, add that folder to PYTHONPATH, or install it"
            hint = did_you_mean(module, ["timm", "torchvision"], otherwise=way_out)
            raise ModelError(f"module {module!r} not found; {hint}") from error
        raise ModelError(f"module {module!r} cannot be imported: {describe_error(error)}{_place(error)}") from error
    except (Exception, SystemExit) as error:  # it is the user's code
        raise ModelError(f"module {module!r} cannot be imported: {describe_error(error)}{_place(error)}") from error


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function; None if it does not say."""
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return None


def _check_arguments(
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    named = [key for key, parameter in parameters.items() if parameter.kind in _NAMED]
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


def _place(error: BaseException) -> str:
    """Where the user's code raised an error."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    ours = (__file__, user_modules.__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and frame.filename not in ours
    ]
    # Rather the line that calls a library than the library's own.
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
