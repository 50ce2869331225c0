"""Nobody pays for a framework they do not use."""

import importlib
import subprocess
import sys

import pytest

from spatialgrad import integrations
from spatialgrad.integrations import load_framework


def test_no_framework_is_loaded_before_it_is_asked_for():
    code = "import sys, spatialgrad.integrations as i; assert dir(i) == ['lightning', 'transformers']; "
    code += "print(sorted({name.partition('.')[0] for name in sys.modules} & {'lightning', 'transformers'}))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert output.stdout.strip() == "[]"


def test_unknown_integrations():
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        integrations.keras  # noqa: B018


def test_frameworks_that_are_broken_speak_for_themselves(tmp_path, monkeypatch):
    (tmp_path / "broken_framework.py").write_text("import a_module_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        load_framework(["broken_framework"], "Broken", "broken")
    with pytest.raises(ModuleNotFoundError, match=r"\[none\]"):
        load_framework(["no_framework.at_all", "nor_this"], "None", "none")
    assert load_framework(["no_framework", "math"], "Mathematics", "math") is importlib.import_module("math")
