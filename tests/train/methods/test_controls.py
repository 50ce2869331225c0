"""What measured scalings are replaced by in control experiments."""

import pytest
import torch

from spatialgrad.train.methods.controls import control_scalings

G = torch.tensor([[0.5, 1.0, 0.4], [1.1, 3.0, 0.9], [0.6, 1.2, 0.3]])
SCALINGS = {"a": G, "b": G.flip(0).sqrt() / G.sqrt().mean(), "c": torch.tensor([0.5, 1.5, 1.0])}


@pytest.mark.parametrize("control", ["none", "shuffled", "neighbours-shuffled", "inverse", "shared"])
def test_every_control_has_mean_one_and_the_same_shapes(control):
    changed = control_scalings(control, {name: G / G.mean() for name, G in SCALINGS.items()}, seed=0)
    for name, scaling in changed.items():
        assert scaling.shape == SCALINGS[name].shape
        torch.testing.assert_close(scaling.mean(), torch.tensor(1.0))


def test_shuffled_keeps_the_factors_and_moves_the_centre():
    for seed in range(20):
        shuffled = control_scalings("shuffled", {"a": G}, seed)["a"]
        assert sorted(shuffled.flatten().tolist()) == sorted(G.flatten().tolist())
        assert shuffled[1, 1] != G[1, 1]


def test_shuffled_neighbours_keep_the_centre():
    orders = set()
    for seed in range(5):
        shuffled = control_scalings("neighbours-shuffled", {"a": G}, seed)["a"]
        assert shuffled[1, 1] == G[1, 1]
        assert sorted(shuffled.flatten().tolist()) == sorted(G.flatten().tolist())
        orders.add(tuple(shuffled.flatten().tolist()))
    assert len(orders) > 1


def test_a_permutation_depends_on_seed_and_layer_alone():
    first = control_scalings("shuffled", SCALINGS, seed=1)
    again = control_scalings("shuffled", {"a": 2 * G}, seed=1)
    assert torch.equal(again["a"], 2 * first["a"])
    other_layer = control_scalings("shuffled", {"other": G}, seed=1)["other"]
    other_seed = control_scalings("shuffled", {"a": G}, seed=2)["a"]
    assert not torch.equal(other_layer, first["a"])
    assert not torch.equal(other_seed, first["a"])


def test_shared_is_the_mean_of_layers_with_the_same_kernel():
    changed = control_scalings("shared", SCALINGS, seed=0)
    torch.testing.assert_close(changed["a"], (SCALINGS["a"] + SCALINGS["b"]) / 2)
    assert torch.equal(changed["a"], changed["b"])
    assert torch.equal(changed["c"], SCALINGS["c"])
