"""Batches are taken from loaders of every kind without a trace."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from spatialgrad.utils import loaders as module
from spatialgrad.utils.loaders import RandomStates, move_to, take_batches


class Noisy(Dataset):
    """Images whose augmentation draws from every global random state there is."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        noise = torch.rand(1) + random.random() + float(np.random.rand())
        return torch.full((1, 4, 4), float(index)) + noise.view(1, 1, 1), index


class Counting(RandomSampler):
    """Shuffles by the number of its epoch, which it counts itself."""

    epoch = 7

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        yield from torch.randperm(len(self.data_source), generator=generator).tolist()
        self.epoch += 1


LOADERS = {
    "plain": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "generator": lambda: DataLoader(Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "sampler": lambda: DataLoader(
        Noisy(), 4, sampler=RandomSampler(Noisy(), generator=torch.Generator().manual_seed(4))
    ),
    "counting": lambda: DataLoader(Noisy(), batch_sampler=BatchSampler(Counting(Noisy()), 4, drop_last=False)),
    "workers": lambda: DataLoader(Noisy(), 4, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(Noisy(), 4, shuffle=True, num_workers=2, persistent_workers=True),
}


def taken(data, batches=None, seed=None):
    states = RandomStates(data)
    try:
        return take_batches(data, batches, states, seed=seed)
    finally:
        states.restore()


def seed_everything(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.mark.parametrize("kind", LOADERS)
def test_taking_batches_leaves_no_trace(kind):
    def epochs(measure):
        seed_everything(1)
        loader = LOADERS[kind]()
        # one epoch first, so that persistent workers exist and have used their random states
        seen = [x for x, _ in loader]
        if measure:
            first, again = ([x for x, _ in taken(loader, number)] for number in (3, 30))
            assert (len(first), len(again)) == (3, 10)  # to the end of the loader
            assert all(map(torch.equal, first, again[:3]))
        return seen + [x for x, _ in loader]

    assert all(map(torch.equal, epochs(measure=True), epochs(measure=False)))


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind != "counting"])
def test_a_seed_decides_about_the_batches_and_leaves_no_trace(kind):
    def batches(seed, state):
        seed_everything(state)
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        found = torch.cat([x for x, _ in taken(LOADERS[kind](), 2, seed)])
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
        return found

    assert torch.equal(batches(seed=5, state=1), batches(seed=5, state=2))
    assert not torch.equal(batches(seed=5, state=1), batches(seed=6, state=1))


def test_the_states_of_every_accelerator_are_restored(monkeypatch):
    class Accelerator:
        """Two devices whose random states are numbers."""

        states = (1, 2)

        def get_rng_state_all(self):
            return self.states

        def set_rng_state_all(self, states):
            self.states = states

        def manual_seed_all(self, seed):
            self.states = (seed, seed)

        manual_seed = manual_seed_all

    accelerator = Accelerator()
    monkeypatch.setattr(module, "_accelerator", lambda: accelerator)
    states = RandomStates()
    states.reseed(9)
    assert accelerator.states == (9, 9)
    states.restore()
    assert accelerator.states == (1, 2)


@pytest.mark.parametrize(
    ("data", "batches", "number"),
    [
        (lambda: [torch.zeros(1)] * 5, None, 5),
        (lambda: [torch.zeros(1)] * 5, 3, 3),
        (lambda: DataLoader([torch.zeros(1)] * 5, 1), None, 2),
        (lambda: (torch.zeros(1) for _ in range(9)), 3, 3),
        (lambda: torch.zeros(4, 3), None, 1),
        (lambda: {"pixel_values": torch.zeros(4, 3)}, None, 1),
        (lambda: (torch.zeros(4, 3), torch.zeros(4)), None, 1),
        (lambda: [DataLoader(torch.arange(6.0), 2), DataLoader(torch.arange(9.0), 2)], 5, 3),  # the shortest
    ],
)
def test_how_many_batches(data, batches, number):
    assert len(taken(data(), batches)) == number


def test_loaders_side_by_side_and_nested_batches():
    shuffled = {"a": DataLoader(Noisy(), 4, shuffle=True), "b": DataLoader(torch.arange(6.0), 2)}
    first, again = taken(shuffled, 2), taken(shuffled, 2)
    assert [batch["b"].tolist() for batch in first] == [[0, 1], [2, 3]]
    assert all(torch.equal(x["a"][0], y["a"][0]) for x, y in zip(first, again, strict=True))
    moved = move_to({"x": [torch.zeros(2), "name"], "y": (torch.ones(1), 3)}, torch.device("meta"))
    assert moved["x"][0].device.type == moved["y"][0].device.type == "meta"
    assert (moved["x"][1], moved["y"][1]) == ("name", 3)
