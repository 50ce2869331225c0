import copy

import pytest
import torch
from torch import nn

from spatialgrad.torch_utils.modules import (
    for_one_process,
    keeping_buffers,
    named_convolutions,
    plain_name,
    quiet_evaluation,
    unwrap_model,
)


def test_wrappers_do_not_change_names():
    inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3)))
    expected = ["0", "1.0"]
    assert list(named_convolutions(inner)) == expected
    assert list(named_convolutions(nn.DataParallel(inner))) == expected
    assert list(named_convolutions(torch.compile(inner))) == expected
    partly = nn.Sequential(inner[0], torch.compile(inner[1]))
    assert list(named_convolutions(partly)) == expected
    assert unwrap_model(torch.compile(nn.DataParallel(inner))) is inner
    assert for_one_process(nn.DataParallel(inner)) is inner


def test_plain_names():
    assert plain_name("_orig_mod.body._fsdp_wrapped_module.0._checkpoint_wrapped_module.conv") == "body.0.conv"


def test_quiet_evaluation_restores_every_flag_even_after_an_error():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3)))
    model[1].eval()
    flags = [module.training for module in model.modules()]
    try:
        with quiet_evaluation(model):
            assert not any(module.training for module in model.modules())
            assert not torch.is_grad_enabled()
            raise KeyError
    except KeyError:
        pass
    assert [module.training for module in model.modules()] == flags
    assert torch.is_grad_enabled()


def test_buffers_are_put_back_into_their_places_even_after_an_error():
    model = nn.Sequential(nn.BatchNorm2d(3))
    before, places = copy.deepcopy(model.state_dict()), [buffer.data_ptr() for buffer in model.buffers()]

    def disturb():
        with keeping_buffers(model):
            model(torch.rand(2, 3, 4, 4))
            model[0].running_mean = torch.ones(3)
            raise KeyError

    with pytest.raises(KeyError):
        disturb()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [buffer.data_ptr() for buffer in model.buffers()] == places
