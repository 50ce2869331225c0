import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from spatialgrad.torch_utils.loaders import Replay, fingerprint, move_to


class Noisy(Dataset):
    """Images whose augmentation draws from every global random state there is."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        noise = torch.rand(1) + random.random() + float(np.random.rand())
        return torch.full((1, 4, 4), float(index)) + noise.view(1, 1, 1), index


def loaders():
    own = torch.Generator().manual_seed(3)
    sampler = RandomSampler(Noisy(), generator=torch.Generator().manual_seed(4))
    return {
        "plain": DataLoader(Noisy(), 4, shuffle=True),
        "generator": DataLoader(Noisy(), 4, shuffle=True, generator=own),
        "sampler": DataLoader(Noisy(), 4, sampler=sampler),
        "workers": DataLoader(Noisy(), 4, shuffle=True, num_workers=2),
        "persistent": DataLoader(Noisy(), 4, shuffle=True, num_workers=2, persistent_workers=True),
    }


@pytest.mark.parametrize("kind", loaders())
def test_two_passes_see_the_same_batches_and_leave_no_trace(kind):
    def epoch_after(measure):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        loader = loaders()[kind]
        # one epoch first, so that persistent workers exist and have used their random states
        first = [x for x, _ in loader]
        if measure:
            with Replay(loader, 3) as replay:
                passes = [[x for x, _ in replay] for _ in range(2)]
            assert len(passes[0]) == 3
            assert all(map(torch.equal, *passes))
        return first + [x for x, _ in loader]

    assert all(map(torch.equal, epoch_after(measure=True), epoch_after(measure=False)))


@pytest.mark.parametrize("kind", loaders())
def test_a_seed_decides_about_the_batches_and_leaves_no_trace(kind):
    def batches(seed, state):
        torch.manual_seed(state)
        random.seed(state)
        np.random.seed(state)
        loader = loaders()[kind]
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        with Replay(loader, 2, seed=seed) as replay:
            first, again = ([x for x, _ in replay] for _ in range(2))
        assert all(map(torch.equal, first, again))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
        return torch.cat(first)

    assert torch.equal(batches(seed=5, state=1), batches(seed=5, state=2))
    assert not torch.equal(batches(seed=5, state=1), batches(seed=6, state=1))


def test_one_shot_iterators_are_kept():
    with Replay((torch.full((1,), float(i)) for i in range(9)), 3) as replay:
        assert [float(x) for x in replay] == [0, 1, 2]
        assert [float(x) for x in replay] == [0, 1, 2]


def test_how_many_batches_by_default():
    batches = [torch.zeros(1)] * 5
    assert len(list(Replay(batches))) == 5
    assert len(list(Replay(DataLoader(batches, 1)))) == 2
    assert len(list(Replay(torch.zeros(4, 3)))) == 1
    assert len(list(Replay({"pixel_values": torch.zeros(4, 3)}))) == 1


def test_bad_requests():
    with pytest.raises(ValueError, match="Invalid batches: 0"):
        Replay([], 0)
    with pytest.raises(TypeError, match="int"):
        Replay(3)


def test_move_to_reaches_nested_tensors():
    batch = {"x": [torch.zeros(2), "name"], "y": (torch.ones(1), 3)}
    moved = move_to(batch, torch.device("meta"))
    assert moved["x"][0].device.type == "meta"
    assert moved["y"][0].device.type == "meta"
    assert (moved["x"][1], moved["y"][1]) == ("name", 3)


def test_fingerprints_tell_batches_apart():
    x = torch.rand(4, 3)
    assert torch.equal(fingerprint((x, torch.arange(4))), fingerprint([x.clone(), torch.arange(4)]))
    assert not torch.equal(fingerprint({"x": x}), fingerprint({"x": x + 1}))


def test_loaders_side_by_side():
    shuffled = {"a": DataLoader(Noisy(), 4, shuffle=True), "b": DataLoader(torch.arange(6.0), 2)}
    with Replay(shuffled, 2) as replay:
        first, again = list(replay), list(replay)
    assert [batch["b"].tolist() for batch in first] == [[0, 1], [2, 3]]
    assert all(torch.equal(x["a"][0], y["a"][0]) for x, y in zip(first, again, strict=True))
    assert len(list(Replay(list(shuffled.values()), 5))) == 3  # as long as the shortest


def test_samplers_that_count_their_epochs_are_put_back():
    class Counting(RandomSampler):
        epoch = 7

        def __iter__(self):
            generator = torch.Generator().manual_seed(self.epoch)
            yield from torch.randperm(len(self.data_source), generator=generator).tolist()
            self.epoch += 1

    sampler = Counting(range(8))
    loader = DataLoader(range(8), batch_sampler=BatchSampler(sampler, 4, drop_last=False))
    with Replay(loader, 5) as replay:  # more than there are: the sampler comes to its end
        passes = [torch.cat(list(replay)).tolist() for _ in range(2)]
    assert passes[0] == passes[1]
    assert sampler.epoch == 7
