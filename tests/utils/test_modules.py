import torch
from torch import nn

from spatialgrad.utils.modules import (
    for_one_process,
    named_convolutions,
    plain_name,
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
