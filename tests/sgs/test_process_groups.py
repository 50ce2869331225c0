"""Four real processes in two groups: each group measures what it sees, and the other one does not disturb it."""

import pytest
import torch
import torch.distributed as dist

from spatialgrad import SpatialGradientScaling
from support.common import TinyNet, images, same_matrices

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(300)]

# By group: the numbers of its processes, the batches of each, and the settings, which differ between the groups.
MEMBERS = ([0, 1], [2, 3])
SHARES = {0: [0, 1], 1: [2], 2: [3], 3: [4]}
SETTINGS = ({"k": 4}, {"k": 6})


def build(number, group=None):
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SpatialGradientScaling(model, optimizer, process_group=group, **SETTINGS[number])


def own_group():
    groups = [dist.new_group(members) for members in MEMBERS]
    number = dist.get_rank() // 2
    return number, groups[number]


def update():
    number, group = own_group()
    return build(number, group).update([images(seed=seed) for seed in SHARES[dist.get_rank()]])


def update_where_the_first_group_fails():
    number, group = own_group()
    sgs = build(number, group)
    channels = 7 if dist.get_rank() == 0 else 3
    try:
        sgs.update([(torch.rand(2, channels, 10, 10), None)])
        return "no error"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.bits
def test_each_group_has_a_scaling_of_its_own(four_ranks):
    results = four_ranks.values(update)
    for number, members in enumerate(MEMBERS):
        alone = build(number).update([images(seed=seed) for rank in members for seed in SHARES[rank]])
        for rank in members:
            assert same_matrices(results[rank], alone)
    assert not same_matrices(results[0], results[2])


def test_a_failure_stays_in_its_group(four_ranks):
    failing, partner, *others = four_ranks.values(update_where_the_first_group_fails)
    assert failing.startswith("RuntimeError: ")
    assert "channels" in failing
    assert partner == "RuntimeError: Another process failed while measuring its batches; see its error."
    assert others == ["no error"] * 2
