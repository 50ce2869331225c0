import torch

from spatialgrad.data.rng import generator_for


def test_generators_of_different_purposes_differ():
    draws = {
        torch.rand(1, generator=generator_for(*key)).item()
        for key in (("a", 1, 2), ("a", 2, 1), ("a", 12), ("a", 1, 2, 0), ("b", 1, 2), ("a", 2**40, 0), ("a", 0, 2**40))
    }
    assert len(draws) == 7
