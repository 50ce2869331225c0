"""Classifiers that start from the weights of another run."""

from dataclasses import replace

import pytest
import torch

from spatialgrad.train import ConfigError
from support.training import assert_resumes, quietly, tiny, weights

STILL = {"lr": 1e-30, "weight_decay": 0.0}
"""An optimizer that changes no weight."""


@pytest.fixture(scope="module")
def pre_trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pre"
    quietly(tiny(folder, "sgs", epochs=2))
    return folder


def fine_tuning(out, start, **groups):
    """A training of shapes-mini's classes, or of those that `groups` name."""
    config = tiny(out, epochs=1, **groups)
    return replace(config, model=replace(config.model, backbone=start))


def test_all_weights_are_taken_where_the_classes_are_as_many(pre_trained, tmp_path):
    quietly(fine_tuning(tmp_path / "run", pre_trained, optimizer=STILL))
    before, after = weights(pre_trained), weights(tmp_path / "run")
    for name, value in before.items():
        if "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(after[name], value, msg=name)


def test_the_classifier_is_new_where_the_classes_are_others(pre_trained, tmp_path):
    state = torch.load(pre_trained / "checkpoint.pt", weights_only=True)["model"]
    classifier = [name for name in state if name.startswith("classifier")][-1].rpartition(".")[0]
    for name in ("weight", "bias"):
        state[f"{classifier}.{name}"] = state[f"{classifier}.{name}"].repeat_interleave(10, 0)
    torch.save(state, tmp_path / "hundred-classes.pth")
    quietly(fine_tuning(tmp_path / "run", tmp_path / "hundred-classes.pth", optimizer=STILL))
    after = weights(tmp_path / "run")
    torch.testing.assert_close(after["features.0.weight"], state["features.0.weight"])
    assert after[f"{classifier}.weight"].shape != state[f"{classifier}.weight"].shape
    assert not torch.equal(after[f"{classifier}.weight"], state[f"{classifier}.weight"][::10])


def test_another_network_is_refused_and_nothing_is_written(pre_trained, tmp_path):
    config = fine_tuning(tmp_path / "run", pre_trained)
    config = replace(config, model=replace(config.model, width=2 * config.model.width))
    with pytest.raises(ConfigError, match=r"--model.backbone: .*pre does not fit this network: 'features.0.weight' is"):
        quietly(config)
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_does_not_load_them_again(pre_trained, tmp_path):
    assert_resumes(lambda out: fine_tuning(out, pre_trained), tmp_path, 1)
