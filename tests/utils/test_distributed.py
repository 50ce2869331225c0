import pytest
import torch
import torch.distributed as dist

from spatialgrad.utils.distributed import all_reduce_, check_agreement, highest, is_distributed, local_part

on_ranks = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(200)]


def reduce_by_hand():
    rank = dist.get_rank()
    low, high = torch.tensor([1.0, -2.0]) * (rank + 1), torch.tensor([[3.0]]) * (rank + 1)
    counts = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32) * (rank + 1)
    all_reduce_([(low, "min"), (counts, "sum"), (high, "max")])
    return is_distributed(), highest(rank * 5), low.tolist(), counts.tolist(), high.tolist()


def reduce_in_two_groups():
    rank = dist.get_rank()
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    total = torch.tensor([1 << rank])
    all_reduce_([(total, "sum")], group)
    check_agreement({"half": rank // 2}, group)
    return int(total), highest(rank, group)


class TestCollectives:
    pytestmark = on_ranks

    def test_of_all(self, ranks):
        for result in ranks.values(reduce_by_hand):
            assert result == (True, 5, [1.0, -4.0], [[3, 6], [9, 12]], [[6.0]])

    def test_of_a_group(self, four_ranks):
        assert four_ranks.values(reduce_in_two_groups) == [(3, 1)] * 2 + [(12, 3)] * 2


def test_a_process_alone_needs_no_group():
    values = torch.tensor([1.0])
    all_reduce_([(values, "sum")])
    assert (is_distributed(), highest(3), values.tolist()) == (False, 3, [1.0])
    assert local_part(values) is values
