"""The class of an optimizer, and what its constructor takes."""

from __future__ import annotations

import importlib
import inspect

import torch
from torch.optim import Optimizer

from spatialgrad.torch_utils.user_modules import import_user_module
from spatialgrad.train.config.optimizer_names import USUAL_LR
from spatialgrad.train.config.validation import flag
from spatialgrad.train.errors import ConfigError

_CLASSES: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamw": torch.optim.AdamW,
}


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of an optimizer.

    Raises:
        ConfigError: If its module cannot be imported, or has no such subclass of `torch.optim.Optimizer`.
    """
    if name in _CLASSES:
        return _CLASSES[name]
    if name == "lion":
        return _lion()
    module_name, _, kind = name.partition(":")
    module = _import(module_name, name)
    found = getattr(module, kind, None)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        what = "has no such class" if found is None else f"is {_describe(found)}, not a torch.optim.Optimizer"
        there = [each for each, value in vars(module).items() if isinstance(value, type) and _is_own(value)]
        hint = f"; {module_name} has {', '.join(sorted(there))}" if there else ""
        where = module_name if found is None else name
        raise ConfigError(f"{flag('optimizer.name')} {name}: {where} {what}{hint}")
    return found


def usual_lr(name: str) -> float:
    """The learning rate of an optimizer if none is set: the class's own default for a class of the user's.

    Raises:
        ConfigError: If the class has no default.
    """
    if name in USUAL_LR:
        return USUAL_LR[name]
    default = getattr(_parameters(optimizer_class(name)).get("lr"), "default", None)
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise ConfigError(f"{flag('optimizer.lr')} must be set: {name} has no default learning rate")
    return float(default)


def accepts(kind: type[Optimizer], argument: str) -> bool:
    """Whether the constructor of an optimizer takes an argument."""
    parameters = _parameters(kind)
    return argument in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def arguments_of(kind: type[Optimizer]) -> list[str]:
    """The names of a constructor's arguments, without the parameters to optimize."""
    return [name for name, each in list(_parameters(kind).items())[1:] if each.kind is not each.VAR_KEYWORD]


def _parameters(kind: type[Optimizer]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


def _lion() -> type[Optimizer]:
    found = getattr(torch.optim, "Lion", None)
    if found is None:
        try:
            found = importlib.import_module("timm.optim").Lion
        except Exception as error:  # timm imports torchvision, which raises more than ImportErrors
            raise ConfigError(
                f"{flag('optimizer.name')} lion needs a PyTorch that has it, or timm (pip install timm): {error}"
            ) from error
    return found  # type: ignore[no-any-return]


def _import(module: str, name: str) -> object:
    try:
        return import_user_module(module)
    except Exception as error:  # whatever the user's module raises
        why = str(error) or type(error).__name__
        raise ConfigError(f"{flag('optimizer.name')} {name}: cannot import {module} ({why})") from error


def _is_own(kind: type) -> bool:
    return issubclass(kind, Optimizer) and kind is not Optimizer


def _describe(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
