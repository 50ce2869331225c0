import pytest
import torch
import torch.distributed as dist
from torch import nn

from spatialgrad.reparam.preserve import calibrate_
from support.ranks import Failure
from support.reparam import SmallNet, batches


def test_statistics_are_those_of_the_data():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=0.3))
    data = [torch.randn(8, 3, 5, 5) * (i + 1) for i in range(3)]
    calibrate_(model, [model[1]], data)
    maps = [model[0](x) for x in data]
    mean = torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0)
    var = torch.stack([m.var((0, 2, 3)) for m in maps]).mean(0)
    torch.testing.assert_close(model[1].running_mean, mean)
    torch.testing.assert_close(model[1].running_var, var)
    assert model[1].momentum == 0.3


def test_nothing_else_changes():
    model = SmallNet().train()
    model.stem_bn.eval()
    before = {key: value.clone() for key, value in model.state_dict().items() if not key.startswith("res_bn")}
    state = torch.get_rng_state()
    loader = torch.utils.data.DataLoader([x for x, _ in batches(4)], batch_size=None, shuffle=True)
    calibrate_(model, [model.res_bn], loader, batches=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert model.training
    assert not model.stem_bn.training
    assert model.res_bn.running_mean.any()


def test_no_batch_is_an_error():
    model = SmallNet()
    with pytest.raises(ValueError, match="no batch"):
        calibrate_(model, [model.res_bn], [])
    assert model.res_bn.momentum == 0.1


def uneven(second):
    """What both processes have measured, where the second one has other data than the first: three batches."""
    model = SmallNet()
    data = batches(3) if dist.get_rank() == 0 else second() if callable(second) else batches(3)[:second]
    calibrate_(model, [model.res_bn], data)
    return model.res_bn.running_mean, int(model.res_bn.num_batches_tracked)


def broken_loader():
    yield batches(1)[0]
    raise OSError("disk on fire")


def wrong_images():
    return [*batches(1), (torch.zeros(2, 7, 4, 4), None)]


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize(
    ("second", "message"),
    [
        (0, "no batch on at least one process"),
        (broken_loader, "disk on fire"),
        (wrong_images, "expected input"),
        (int, "Expected a loader"),
    ],
)
def test_an_error_on_one_process_ends_all(ranks, second, message):
    first, other = ranks.run(uneven, second)
    assert isinstance(first, Failure)
    assert message in other.message
    assert first == other if second == 0 else "Another process failed" in first.message


@pytest.mark.xdist_group("ranks")
def test_processes_use_as_many_batches_as_each_has(ranks):
    (mean, number), (other_mean, other_number) = ranks.values(uneven, 2)
    assert number == other_number == 2
    assert torch.equal(mean, other_mean)
