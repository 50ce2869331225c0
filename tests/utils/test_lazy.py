"""Packages that import their names on use: what they export, and what is imported before."""

import importlib
import pkgutil
import sys

import pytest

import spatialgrad

LAZY = ["spatialgrad", *(f"spatialgrad.{name}" for name in ("models", "data", "reparam", "train"))]
PACKAGE = """
from typing import TYPE_CHECKING
from spatialgrad.utils.lazy import import_on_use
if TYPE_CHECKING:
    from lazy_package.inner import VALUE
__getattr__, __dir__ = import_on_use(__name__)
"""


@pytest.mark.parametrize("name", LAZY)
def test_everything_public_is_found(name):
    if name == "spatialgrad.train":
        pytest.importorskip("msgspec", reason="needs the extra [train]")
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package))
    for each in package.__all__:
        assert getattr(package, each) is getattr(package, each)
    # A module of that name would take the place of what is exported when it is imported.
    assert not {module.name for module in pkgutil.iter_modules(package.__path__)} & set(package.__all__)


def test_a_module_is_imported_when_its_name_is_used(tmp_path, monkeypatch):
    (tmp_path / "lazy_package").mkdir()
    (tmp_path / "lazy_package" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "lazy_package" / "inner.py").write_text("VALUE = object()\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("lazy_package")
    assert "VALUE" in dir(found)
    assert "lazy_package.inner" not in sys.modules
    assert found.VALUE is sys.modules["lazy_package.inner"].VALUE
    assert vars(found)["VALUE"] is found.VALUE  # the next time, nothing is looked up


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'spatialgrad' has no attribute 'nothing'"):
        spatialgrad.nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from spatialgrad.models import nothing")
