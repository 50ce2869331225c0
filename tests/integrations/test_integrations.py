"""What the callbacks share, and that nobody pays for a framework they do not use."""

import importlib
import subprocess
import sys

import pytest
import torch

from spatialgrad import integrations
from spatialgrad.integrations import load_framework
from spatialgrad.integrations.scheduled_scaling import ScheduledScaling
from support.common import TinyNet


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


def test_the_batches_of_an_update_follow_from_the_run_and_the_epoch():
    def scalings(seed, epoch, state):
        torch.manual_seed(seed)
        scheduled = ScheduledScaling(2, {"every": 1})
        model = TinyNet()
        model.load_state_dict(weights)
        scheduled.begin(model, [torch.optim.SGD(model.parameters(), lr=0.1)], resumed=False)
        torch.rand(state)
        data = torch.utils.data.TensorDataset(images)
        assert scheduled.begin_epoch(epoch, torch.utils.data.DataLoader(data, 4, shuffle=True), None)
        assert not scheduled.begin_epoch(epoch, None, None)  # once is enough
        return scheduled.scaling.scalings["first"]

    weights, images = TinyNet().state_dict(), torch.rand(64, 3, 10, 10)
    assert torch.equal(scalings(seed=1, epoch=2, state=3), scalings(seed=1, epoch=2, state=4))
    assert not torch.equal(scalings(seed=1, epoch=2, state=3), scalings(seed=1, epoch=3, state=3))
    assert not torch.equal(scalings(seed=1, epoch=2, state=3), scalings(seed=5, epoch=2, state=3))
