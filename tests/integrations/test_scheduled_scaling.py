"""What all trainers share, without any of them."""

import torch
from torch.utils.data import DataLoader

from spatialgrad.integrations.scheduled_scaling import ScheduledScaling
from support.common import TinyNet, dataset, same_matrices


def begun(seed, state=None):
    """A training that began in a process with this seed: from scratch, or from a state."""
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduled = ScheduledScaling(1, {"warmup": 1, "every": 1})
    if state is not None:
        scheduled.load_state_dict(state)
    torch.manual_seed(seed)
    scheduled.begin(model, [optimizer], resumed=state is not None)
    return scheduled


def measured(scheduled, epoch=1):
    torch.rand(epoch + 3)  # trainers do not restore random states before an epoch
    assert scheduled.begin_epoch(epoch, DataLoader(dataset(), 8, shuffle=True), None)
    return scheduled.scaling.scalings


def test_a_training_that_is_resumed_with_another_seed_measures_the_same_batches():
    first = begun(seed=1)
    state = first.state_dict()
    expected = measured(first)
    assert same_matrices(measured(begun(seed=2, state=state)), expected)
    assert not same_matrices(measured(begun(seed=2)), expected)


def test_every_epoch_measures_other_batches_once():
    first = begun(seed=1)
    expected = measured(first)
    assert not same_matrices(measured(begun(seed=1), epoch=2), expected)
    resumed = begun(seed=1, state=first.state_dict())
    assert not resumed.begin_epoch(1, DataLoader(dataset(), 8, shuffle=True), None)
    assert same_matrices(resumed.scaling.scalings, expected)
