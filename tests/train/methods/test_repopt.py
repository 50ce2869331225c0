"""`--method repopt-search`, then `--method repopt`, or `sgs` from the same initial weights."""

import shutil
from dataclasses import replace

import pytest
import torch

from spatialgrad.reparam import repopt_multipliers
from spatialgrad.train import ConfigError, load_model, resume
from spatialgrad.train.start_weights import read_scales
from support.training import assert_same_run, quietly, stop_at, tiny, weights


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """A run of the search."""
    folder = tmp_path_factory.mktemp("search")
    quietly(tiny(folder, "repopt-search"))
    return folder


def test_the_search_trains_its_scales_and_is_deployed_without_branches(search):
    scales = read_scales(search)
    assert len(scales) == 8
    assert all((layer.kxk != 1).any() and (layer.pointwise != 1).any() for layer in scales.values())
    assert any(layer.identity is not None and (layer.identity != 1).any() for layer in scales.values())
    assert not any("branches" in name for name in load_model(search).state_dict())


def test_the_target_starts_from_the_scales_and_differs_from_plain_training(search, tmp_path):
    runs = {
        "repopt": tiny(tmp_path / "repopt", "repopt", repopt={"scales": search}),
        "init": tiny(tmp_path / "init", "baseline", repopt={"scales": search}),
        "sgs": tiny(tmp_path / "sgs", "sgs", repopt={"scales": search}),
        "plain": tiny(tmp_path / "plain"),
    }
    results = {name: quietly(config)[0] for name, config in runs.items()}
    assert len({result.parameters for result in results.values()}) == 1
    final = [weights(tmp_path / name)["features.0.weight"] for name in runs]
    for number, first in enumerate(final):
        assert not any(torch.equal(first, second) for second in final[number + 1 :])
    assert results["repopt"].training_parameters == results["plain"].parameters


def test_it_resumes_bit_for_bit_without_the_search(search, tmp_path):
    copied = shutil.copytree(search, tmp_path / "search")
    settings = {"repopt": {"scales": copied}, "budget": {"checkpoint_steps": 1}}
    whole = tiny(tmp_path / "whole", "repopt", **settings)
    quietly(whole)
    stop_at(7, replace(whole, out=tmp_path / "stopped"))
    shutil.rmtree(copied)
    resume(tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_what_does_not_fit_is_named(search, tmp_path):
    quietly(tiny(tmp_path / "plain"))
    with pytest.raises(ConfigError, match="was trained with baseline, not with repopt-search"):
        quietly(tiny(tmp_path / "b", "repopt", repopt={"scales": tmp_path / "plain"}))
    with pytest.raises(ConfigError, match=r"does not fit vgg11 at width 0\.125"):
        quietly(tiny(tmp_path / "c", "repopt", repopt={"scales": search}, model={"width": 1 / 8}))
    with pytest.raises(ConfigError, match=r"--repopt\.scales"):
        tiny(tmp_path / "d", "dbb", repopt={"scales": search})


def test_multipliers_of_a_run_fit_its_network(search):
    model = load_model(search)
    factors = repopt_multipliers(model, read_scales(search))
    assert all(factors[name].shape == model.get_submodule(name).weight.shape for name in factors)
