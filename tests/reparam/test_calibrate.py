import pytest
import torch
from torch import nn

from spatialgrad.reparam.calibrate import calibrate_
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
