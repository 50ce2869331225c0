import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from spatialgrad.reparam import (
    DBB,
    BranchedConv2d,
    MergeError,
    merge,
    merge_with_report,
    named_blocks,
    reparameterize_,
)
from support.reparam import BLOCKS, SmallNet, batches, disturb_statistics_, evaluate, randomize_, relative, train


def trained(method, device="cpu", steps=6):
    model = reparameterize_(SmallNet(bias=True).to(device), BLOCKS[method])
    train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), batches(steps, device=device))
    return model


@pytest.mark.parametrize("method", BLOCKS)
def test_merging_after_training_steps_from_train_mode(method, device, x):
    model = trained(method, device)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    merged = merge(model)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(isinstance(module, BranchedConv2d) for module in merged.modules())
    assert all(type(getattr(merged, name)) is nn.Conv2d for name in ("stem", "down", "res"))
    assert relative(evaluate(model, x), evaluate(merged, x)) < 1e-5
    assert {id(p) for p in merged.parameters()}.isdisjoint(id(p) for p in model.parameters())


def test_merging_twice_changes_nothing_and_the_result_trains():
    once = merge(trained("dbb"))
    twice = merge(once)
    assert twice is not once
    assert all(torch.equal(value, twice.state_dict()[key]) for key, value in once.state_dict().items())
    train(once, torch.optim.SGD(once.parameters(), lr=0.01), batches(2))


def test_the_report_names_every_layer_and_the_largest_difference(device, x, caplog):
    with caplog.at_level("INFO", logger="spatialgrad"):
        merged, report = merge_with_report(trained("dbb", device), example_inputs=x)
    assert "3 blocks merged, largest difference" in caplog.text
    assert set(report.layers) == {"stem", "down", "res"}
    assert 0 < report.largest.relative < 1e-5
    assert report.model is not None
    assert report.model.relative < 1e-5
    assert "3 blocks merged, largest difference" in str(report)
    assert relative(evaluate(merged, x), evaluate(merge(merged), x)) == 0
    empty = merge_with_report(nn.Linear(2, 2)).report
    assert (empty.layers, empty.largest.relative) == ({}, 0.0)


def test_a_merge_that_differs_is_refused_by_name(monkeypatch):
    model = trained("dbb")
    block = model.down
    wrong = block.fold()
    monkeypatch.setattr(block, "fold", lambda: wrong._replace(bias=wrong.bias + 1))
    with pytest.raises(MergeError, match=r"DBB block 'down' differs by .*more than 1e-03"):
        merge(model)


def test_non_finite_weights_are_refused():
    model = trained("acb")
    with torch.no_grad():
        model.res.branches["1xk"].conv.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(MergeError, match="'res' differs by nan"):
        merge(model)


def test_the_tolerance_can_be_tightened():
    with pytest.raises(MergeError, match="more than 1e-12"):
        merge(trained("dbb"), tolerance=1e-12)
    assert isinstance(merge(trained("dbb").double(), tolerance=1e-12), SmallNet)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_types_merge(dtype):
    model = trained("dbb").to(dtype)
    merged, report = merge_with_report(model)
    assert merged.res.weight.dtype == dtype
    assert report.largest.relative < 0.05


def test_a_block_alone_merges_into_a_convolution():
    block = randomize_(DBB().build(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)))
    assert type(merge(block)) is nn.Conv2d


def test_wrapped_models_merge_into_plain_ones(device, x):
    model = trained("dbb", device)
    for wrapped in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        merged = merge(wrapped)
        assert type(merged) is SmallNet
        assert relative(evaluate(model, x), evaluate(merged, x)) < 1e-5


@pytest.mark.parametrize("method", BLOCKS)
def test_saved_and_loaded(method, tmp_path, device, x):
    model = trained(method, device)
    merged = merge(model)
    torch.save(model.state_dict(), tmp_path / "branched.pt")
    torch.save(merged.state_dict(), tmp_path / "merged.pt")

    again = reparameterize_(SmallNet(bias=True).to(device), BLOCKS[method])
    again.load_state_dict(torch.load(tmp_path / "branched.pt", weights_only=True))
    assert torch.equal(evaluate(again, x), evaluate(model, x))

    deployed = merge(reparameterize_(SmallNet(bias=True).to(device), BLOCKS[method]))
    deployed.load_state_dict(torch.load(tmp_path / "merged.pt", weights_only=True))
    assert torch.equal(evaluate(deployed, x), evaluate(merged, x))

    whole = io.BytesIO()
    torch.save(merged, whole)
    whole.seek(0)
    assert torch.equal(evaluate(torch.load(whole, weights_only=False), x), evaluate(merged, x))


def onnx_outputs(model, x, path):
    onnxruntime = pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(model.eval(), (x,), path, dynamo=True, input_names=["x"], verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"x": x.numpy()})
    return output


@pytest.mark.parametrize("method", BLOCKS)
def test_merged_models_export_to_onnx(method, tmp_path):
    model, ((x, _),) = trained(method), batches(1)
    output = onnx_outputs(merge(model), x, tmp_path / "model.onnx")
    np.testing.assert_allclose(output, evaluate(model, x).numpy(), atol=1e-5, rtol=1e-4)


def test_branched_models_export_to_onnx_too(tmp_path):
    """Crops, border values and averages survive the export, for whoever wants to look at the branches."""
    block = randomize_(DBB(branches=("kxk", "1x1", "1x1_kxk", "1x1_avg", "identity")).build(nn.Conv2d(3, 3, 3), None))
    ((x, _),) = batches(1)
    output = onnx_outputs(block, x, tmp_path / "block.onnx")
    np.testing.assert_allclose(output, evaluate(block, x).numpy(), atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def timm_utils():
    """The real timm, which imports torchvision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("timm.utils.model")


@pytest.mark.parametrize(("method", "inplace"), [*((method, False) for method in BLOCKS), ("dbb", True)])
def test_timm_reparameterizes_our_blocks(timm_utils, method, inplace, device, x):
    model = trained(method, device).eval()
    expected = evaluate(model, x)
    deployed = timm_utils.reparameterize_model(model, inplace=inplace)
    assert (deployed is model) == inplace
    assert all(block.merged is not None for _, block in named_blocks(deployed))
    assert not any(isinstance(module, nn.BatchNorm2d) for _, b in named_blocks(deployed) for module in b.modules())
    assert relative(expected, evaluate(deployed, x)) < 1e-5
    plain = merge(deployed)
    assert type(plain.stem) is nn.Conv2d
    assert relative(expected, evaluate(plain, x)) < 1e-5


def test_a_timm_network_converts_and_merges(timm_utils):
    timm = pytest.importorskip("timm")
    model = disturb_statistics_(timm.create_model("resnet18", num_classes=10, channels=(8, 16, 32, 64)))
    x = torch.randn(1, 3, 64, 64)
    expected = evaluate(model, x)
    reparameterize_(model, DBB(), example_inputs=x)
    assert len(list(named_blocks(model))) == 16
    assert type(model.layer1[0].bn1) is nn.Identity
    assert relative(expected, evaluate(model, x)) < 1e-4
    assert relative(expected, evaluate(merge(copy.deepcopy(model)), x)) < 1e-4
