"""Libraries that users already have: their examples run, and their optimizers' steps are scaled in the right place."""

import copy
import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from spatialgrad import SpatialGradientScaling
from support.common import (
    TinyNet,
    batches,
    close_weights,
    loss_of,
    python_environment,
    scale_by_hand_,
    some_scalings,
    train_,
    train_by_hand_,
)
from support.optimizers import SignSGD

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "works_with"
SGD = ("SGD", "gradient")
EXPECTED = {
    "fastai_learner": [SGD],
    "ignite_engine": [SGD],
    "mmengine_runner": [SGD],
    "monai_unet": [SGD],
    "pytorch_optimizer_lion_muon": [("Lion", "update"), ("Muon", "update")],
    "pytorch_optimizer_sam": [SGD],  # the base optimizer
    "schedulefree_sgd": [("SGDScheduleFree", "gradient")],
    "segmentation_models": [("Adam", "update")],
    "skorch_callback": [SGD],
    "ultralytics_classify": [SGD, ("AdamW", "update"), ("MuSGD", "update")],
}
"""The optimizers of every example, and where G belongs. torch_func has none."""
# Where steps agree, they usually do so bit for bit.
ALIKE = 1e-3


@pytest.mark.parametrize("name", EXPECTED)
def test_the_last_step_of_an_example_is_scaled(name, tmp_path):
    results = run(name, tmp_path)
    assert [result["optimizer"] for result in results] == [optimizer for optimizer, _ in EXPECTED[name]]
    for result, (_, place) in zip(results, EXPECTED[name], strict=True):
        other = {"gradient": "update", "update": "gradient"}[place]
        assert result["updates"] == 1
        assert result["unmeasured"] == []
        assert "assumed" not in result["repr"]
        assert max(result[place]) < ALIKE
        assert min(result["unscaled"]) > 10 * ALIKE
        assert min(result[other]) > 10 * ALIKE


def run(name, folder):
    """What `support.client_steps` found out about an example, in a process of its own."""
    working, settings = folder / "working", folder / "settings"
    working.mkdir()
    settings.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "support.client_steps", str(FOLDER / f"{name}.py"), str(folder / "steps.json")],
        capture_output=True,
        text=True,
        cwd=working,
        timeout=300,
        # Ultralytics: where it keeps its settings, no network, and no pip.
        env=python_environment()
        | {"YOLO_CONFIG_DIR": str(settings), "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"},
    )
    assert done.returncode == 0, done.stderr
    assert "NoEffectWarning" not in done.stderr
    assert not list(working.iterdir()), "an example should leave no files behind"
    return json.loads((folder / "steps.json").read_text())


def test_torch_func():
    example = SimpleNamespace(**runpy.run_path(str(FOLDER / "torch_func.py")))
    sgs, model, batch = example.sgs, example.model, (example.x, example.y)
    assert sgs.num_updates == 1
    assert not any(torch.equal(G, torch.ones_like(G)) for G in sgs.scalings.values())
    after = example.step(example.params, *batch)
    model.load_state_dict(example.params)
    loss_of(model, batch).backward()
    scale_by_hand_(model, sgs.scalings)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(after[name], parameter.detach() - 0.1 * parameter.grad)


def test_every_example_is_tested_and_on_the_page():
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {*EXPECTED, "torch_func"}
    page = (ROOT / "docs" / "works-with.md").read_text()
    for name in names:
        assert f"```{{literalinclude}} ../examples/works_with/{name}.py\n" in page


def static(model, optimizer):
    return SpatialGradientScaling(model, optimizer, measure=None, scalings=some_scalings())


class TestScheduleFree:
    def test_sgd_gets_the_whole_of_g(self):
        import schedulefree

        model = TinyNet()
        twin = copy.deepcopy(model)
        mine, other = (schedulefree.SGDScheduleFree(net.parameters(), lr=0.1) for net in (model, twin))
        assert static(model, mine).apply == "gradient"
        mine.train()
        other.train()
        train_(model, mine, batches())
        train_by_hand_(twin, other, batches(), some_scalings(), "gradient")
        assert close_weights(model, twin)
        mine.eval()
        other.eval()
        assert close_weights(model, twin)

    @pytest.mark.parametrize("name", ["AdamWScheduleFree", "RAdamScheduleFree"])
    def test_adaptive_ones_are_refused(self, name):
        import schedulefree

        model = TinyNet()
        with pytest.raises(ValueError, match=rf"{name} keeps its own copy of the weights"):
            static(model, getattr(schedulefree, name)(model.parameters()))

    @pytest.mark.parametrize(("kind", "place"), [(torch.optim.SGD, "gradient"), (SignSGD, "update")])
    def test_a_wrapper_around_any_optimizer_gets_the_whole_of_g(self, kind, place):
        import schedulefree

        def moved(scalings):
            torch.manual_seed(0)
            model = TinyNet()
            before = {name: conv.detach().clone() for name, conv in model.named_parameters() if conv.dim() == 4}
            optimizer = schedulefree.ScheduleFreeWrapper(kind(model.parameters(), lr=0.01))
            optimizer.train()
            sgs = SpatialGradientScaling(model, optimizer, measure=None, scalings=scalings)
            assert sgs.apply == place
            for number in range(4):
                generator = torch.Generator().manual_seed(number)
                for parameter in model.parameters():
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
                optimizer.step()
            after = dict(model.named_parameters())
            return {name: after[name].detach() - old for name, old in before.items()}

        plain, scaled = moved(None), moved(some_scalings())
        for name, G in some_scalings().items():
            torch.testing.assert_close(scaled[f"{name}.weight"], plain[f"{name}.weight"] * G, rtol=1e-3, atol=1e-6)


def groups(model):
    """The parameters as Muon wants them."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "use_muon": True},
        {"params": [p for p in parameters if p.dim() < 2], "use_muon": False},
    ]


class TestPytorchOptimizer:
    @pytest.mark.parametrize("name", ["Lion", "Muon"])
    def test_the_update_is_scaled(self, name):
        import pytorch_optimizer

        model = TinyNet()
        twin = copy.deepcopy(model)
        parameters = groups if name == "Muon" else nn.Module.parameters
        kind = getattr(pytorch_optimizer, name)
        mine, other = (kind(parameters(net), lr=0.01, weight_decay=0.1) for net in (model, twin))
        sgs = static(model, mine)
        assert sgs.apply == "update"
        assert "assumed" not in repr(sgs)
        train_(model, mine, batches())
        train_by_hand_(twin, other, batches(), some_scalings(), "update")
        assert close_weights(model, twin)

    @pytest.mark.parametrize("closure", [False, True])
    def test_sam_climbs_without_scaling_and_descends_with_it(self, closure):
        from pytorch_optimizer import SAM

        model = TinyNet()
        twin = copy.deepcopy(model)
        optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.5, lr=0.1, momentum=0.9)
        assert static(model, optimizer).apply == "gradient"
        for batch in batches():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            if closure:
                optimizer.step(lambda batch=batch: loss_of(model, batch).backward())
                continue
            optimizer.first_step(zero_grad=True)
            loss_of(model, batch).backward()
            optimizer.second_step()

        other = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        for batch in batches():
            sam_by_hand_(twin, other, batch, some_scalings())
        assert close_weights(model, twin)


def sam_by_hand_(model, optimizer, batch, scalings):
    """A step of SAM with rho = 0.5: gradients where the loss is highest nearby, scaled for the step back here."""
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    here = copy.deepcopy(model.state_dict())
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5 * p.grad / norm)
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    model.load_state_dict(here)
    scale_by_hand_(model, scalings)
    optimizer.step()
