"""Our docstrings are plain text with backticks: what reStructuredText would read into them is escaped."""

import ast
import importlib
import inspect
import re
import sys
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

CODE = re.compile(r"(``.+?``|`[^`]+`)")
# Stars of *args and shapes, bars of absolute values, lone backticks, underscores at the end of a name.
MARKUP = re.compile(r"\*|\||`|(?<=\w)_\b")


@cache
def public_names(package: str) -> frozenset[str]:
    """What a package exports."""
    return frozenset(importlib.import_module(package).__all__)


def convert(line: str, packages: list[str]) -> str:
    """A line with its public names as links, other names as code, and all other text as it is.

    Args:
        line: Of a docstring; lines of interpreter sessions stay as they are.
        packages: Where to look for names, in this order.
    """
    if line.lstrip().startswith((">>>", "...")):
        return line
    return "".join(_convert_part(part, packages) for part in CODE.split(line))


def _convert_part(part: str, packages: list[str]) -> str:
    if part.startswith("``"):
        return part
    if not part.startswith("`"):
        return MARKUP.sub(lambda match: "\\" + match[0], part)
    name = part.strip("`")
    for package in packages:
        if name.partition(".")[0] in public_names(package):
            return f":py:obj:`{name} <{package}.{name}>`"
    return f"``{name}``"


@cache
def attribute_docstrings(module: str) -> dict[tuple[str, str], list[str]]:
    """The docstrings beneath the constants and fields of a module, by class ("" for none) and name.

    Sphinx has an analyzer for this, but it cannot read modules with an f-string in an annotation.
    """
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    bodies = {"": tree.body} | {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    return {
        (scope, target.id): inspect.cleandoc(following.value.value).splitlines()
        for scope, body in bodies.items()
        for statement, following in pairwise(body)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)])
        if isinstance(target, ast.Name)
    }


class Constants(SphinxDirective):
    """``.. constants:: package``: what it exports besides classes and functions.

    Autodoc would look for the docstring of a constant in the package, not in the module that defines it.
    """

    required_arguments = 1

    def run(self) -> list[Node]:
        """An entry for every constant."""
        package = importlib.import_module(self.arguments[0])
        lines = []
        for name in package.__all__:
            exported = getattr(package, name)
            if not (name.startswith("__") or inspect.isclass(exported) or inspect.isroutine(exported)):
                text = [convert(line, self.config.public_packages) for line in constant_docstring(name)]
                lines += [f".. py:data:: {name}", f"   :module: {package.__name__}", ""]
                lines += [*(f"   {line}" for line in text), ""]
        return self.parse_text_to_nodes("\n".join(lines))


def constant_docstring(name: str) -> list[str]:
    """The docstring of a constant, from wherever it is defined."""
    modules = [module for module in sys.modules if module.startswith("spatialgrad.")]
    found = (attribute_docstrings(module).get(("", name)) for module in modules)
    return next(filter(None, found), [])


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "module":
        lines[:] = []  # the page says it in its own words
    packages = sorted(app.config.public_packages, key=lambda package: not name.startswith(f"{package}."))
    lines[:] = [convert(line, packages) for line in lines]
    if what in ("attribute", "property"):
        app.plain_attributes[name] = list(lines)


def _restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    # Napoleon takes what is before a colon for a type.
    if what in ("attribute", "property"):
        lines[:] = app.plain_attributes[name]


def _prepare(app: Sphinx) -> None:
    """Let autodoc see names that are loaded on demand, and fields as they are meant.

    That is `int` without the names of its flags on the command line, and slots with their docstrings.
    """
    for package in map(importlib.import_module, app.config.public_packages):
        for name in package.__all__:
            exported = getattr(package, name)
            setattr(package, name, exported)
            if not (isinstance(exported, type) and is_dataclass(exported)):
                continue
            if "Annotated" in str(exported.__annotations__):
                exported.__annotations__ = get_type_hints(exported)
                exported.__init__.__annotations__ = get_type_hints(exported.__init__)
            if "__slots__" in vars(exported):
                documented = attribute_docstrings(exported.__module__)
                lines = {slot: documented.get((exported.__name__, slot), []) for slot in exported.__slots__}
                exported.__slots__ = {slot: "\n".join(found) for slot, found in lines.items()}


def setup(app: Sphinx) -> ExtensionMetadata:
    """Run before napoleon, which writes reStructuredText on purpose."""
    app.add_directive("constants", Constants)
    app.add_config_value("public_packages", [], "env", list)
    app.plain_attributes = {}
    app.connect("autodoc-process-docstring", _process, priority=100)
    app.connect("autodoc-process-docstring", _restore, priority=900)
    app.connect("builder-inited", _prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
