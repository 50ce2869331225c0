"""The flags of a training, generated from its config; `--recipe` and `--config` set their defaults."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from spatialgrad.train.config import FREE, TrainConfig, flatten, from_dict, load_config, to_dict
from spatialgrad.train.flags import flag
from spatialgrad.train.recipes import RECIPES, recipe

FIRST = (
    *("model.name", "model.width", "data.name", "data.batch_size", "data.image_size"),
    *("method.name", "optimizer.name", "optimizer.lr", "scaling.k", "budget.epochs", "seed", "out"),
)
"""The fields that `--help` shows; `--help-all` shows all of them."""
SHORT, LONG = ("-h", "--help"), "--help-all"
SHORTENED = f"The most common flags follow; {LONG} shows all of them."

RecipeName = Annotated[
    str | None, tyro.conf.arg(metavar="NAME", help=f"Use the values of a recipe as defaults: {', '.join(RECIPES)}.")
]
ConfigFile = Annotated[
    Path | None,
    tyro.conf.arg(name="config", metavar="FILE.toml", help="Read settings from a file; flags override them."),
]


@dataclass(frozen=True)
class ConfigCommand:
    """A command with the flags of a training.

    Args:
        function: Is called with `config`, with its own flags, and with `base`: the config without any flag.
        hidden: Dotted fields and groups of the config that have no flag, because the command sets them.
        defaults: Gives the defaults of the command from those of a training and the command line.
    """

    function: Callable[..., None]
    hidden: Collection[str] = ()
    defaults: Callable[[TrainConfig, Sequence[str]], TrainConfig] = lambda config, arguments: config

    def bind(self, arguments: Sequence[str]) -> Callable[..., None]:
        """A function for the parser, whose defaults follow from the `--recipe` and `--config` of a command line."""
        base = self.defaults(recipe_config(arguments), arguments)
        file = value_of("--config", arguments)
        default = base if file is None else load_config(file, base)
        short = not set(SHORT).isdisjoint(arguments)
        shown = hiding(default, {*self.hidden, *(_rare(default) if short else ())})

        def command(**given: Any) -> None:
            self.function(base=base, **{**given, "config": from_dict(to_dict(given["config"]))})

        hints = get_type_hints(self.function, include_extras=True)
        command.__annotations__ = hints | {"config": Annotated[type(shown), tyro.conf.arg(name="")]}
        parameters = inspect.signature(self.function).parameters.values()
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                each.replace(default=shown) if each.name == "config" else each
                for each in parameters
                if each.name != "base"
            ]
        )
        summary, _, rest = unwrapped(self.function).partition("\n\n")
        command.__doc__ = "\n\n".join([summary, *([SHORTENED] if short else []), rest])
        functools.update_wrapper(command, self.function, assigned=("__name__", "__module__"), updated=())
        del command.__wrapped__  # type: ignore[attr-defined]
        return command


def unwrapped(function: Callable[..., Any]) -> str:
    """The docstring with each argument in one line: the parser would keep the line breaks of the source."""
    return re.sub(r"\n {8}", " ", inspect.getdoc(function) or "")


def hiding(config: Any, hidden: Collection[str], prefix: str = "") -> Any:
    """A config of which some fields have no flags; it is an instance of a derived class.

    Args:
        config: A config, or a group of one.
        hidden: Dotted fields or groups.
        prefix: Of the group.
    """
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    hints, changed = get_type_hints(type(config), include_extras=True), []
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if dotted in hidden:
            changed.append((name, tyro.conf.Suppress[hints[name]]))  # type: ignore[misc, valid-type]
        elif is_dataclass(value) and any(each.startswith(f"{dotted}.") for each in hidden):
            values[name] = hiding(value, hidden, f"{dotted}.")
            changed.append((name, type(values[name])))
    if not changed:
        return config
    kind = make_dataclass(type(config).__name__, changed, bases=(type(config),), frozen=True, kw_only=True)
    kind.__doc__ = type(config).__doc__
    return kind(**values)


def recipe_config(arguments: Sequence[str]) -> TrainConfig:
    """The config of the `--recipe` on a command line.

    A recipe's learning rate is that of its optimizer; another `--optimizer.name` has its own default.
    """
    name = value_of("--recipe", arguments)
    if name is None:
        return TrainConfig()
    config, optimizer = recipe(name), value_of("--optimizer.name", arguments)
    if optimizer in (None, config.optimizer.name):
        return config
    return replace(config, optimizer=replace(config.optimizer, lr=None))


def value_of(name: str, arguments: Sequence[str]) -> str | None:
    """The last value of a flag on a command line, or None."""
    found = None
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        given, _, value = argument.partition("=")
        if given == name:
            found = value or following
    return found


def flags_of(
    config: TrainConfig, default: TrainConfig, *, without: Iterable[str] = (), always: Iterable[str] = ()
) -> list[str]:
    """The flags that make a config of another one; where a run computes is left out.

    Args:
        config: To describe.
        default: What applies without flags.
        without: Dotted fields to leave out.
        always: Dotted fields to name even if both have the same value.
    """
    before, flags = flatten(to_dict(default)), list[str]()
    for name, value in flatten(to_dict(config)).items():
        if name in (*FREE, *without) or (before.get(name) == value and name in before and name not in always):
            continue
        if _is_switch(config, name):
            group, _, last = flag(name).rpartition(".")
            flags.append(flag(name) if value else f"{group}.no-{last}")
        else:
            flags += [flag(name), *map(str, value if isinstance(value, list) else [value])]
    return flags


def command_of(name: str, flags: Sequence[str], recipe: str | None = None) -> str:
    """A command line that can be copied into a shell."""
    return shlex.join(["spatialgrad", name, *(("--recipe", recipe) if recipe else ()), *flags])


def _rare(config: TrainConfig) -> set[str]:
    """The fields that `--help` leaves out, and the groups that have no others."""
    groups = {name.partition(".")[0] for name in FIRST}
    names = set(flatten(to_dict(config))) - set(FIRST)
    return names | {name.partition(".")[0] for name in names if "." in name} - groups


def _is_switch(config: TrainConfig, field: str) -> bool:
    """Whether a field is set by its flag alone, and unset by the flag with `no-`."""
    group, _, name = field.rpartition(".")
    return bool(group) and get_type_hints(type(getattr(config, group))).get(name) is bool
