import copy

import pytest
import torch
from torch import nn

from spatialgrad.utils.modules import (
    for_one_process,
    keeping_buffers,
    named_convolutions,
    plain_name,
    quiet_evaluation,
    unwrap_model,
)


def test_wrappers_do_not_change_names():
    inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3)))
    partly = nn.Sequential(inner[0], torch.compile(inner[1]))
    for model in (inner, nn.DataParallel(inner), torch.compile(inner), partly):
        assert list(named_convolutions(model)) == ["0", "1.0"]
    assert unwrap_model(torch.compile(nn.DataParallel(inner))) is inner
    assert for_one_process(nn.DataParallel(inner)) is inner
    assert plain_name("_orig_mod.body._fsdp_wrapped_module.0._checkpoint_wrapped_module.conv") == "body.0.conv"


def test_flags_and_buffers_are_restored_even_after_an_error():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3)))
    model[1].eval()
    model.register_buffer("grid", torch.zeros(3, 1).expand(3, 4))  # its memory overlaps

    def state():
        places = [buffer.data_ptr() for buffer in model.buffers()]
        return str([model.state_dict(), places, [module.training for module in model.modules()]])

    def disturb():
        with quiet_evaluation(model), keeping_buffers(model):
            assert not any(module.training for module in model.modules())
            assert not torch.is_grad_enabled()
            model.train()(torch.rand(2, 3, 4, 4))
            model[0].running_mean = torch.ones(3)
            model.grid = torch.ones(1)
            raise KeyError

    before = copy.deepcopy(state())
    with pytest.raises(KeyError):
        disturb()
    assert state() == before
    assert torch.is_grad_enabled()
