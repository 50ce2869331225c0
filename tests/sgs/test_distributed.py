"""Two real processes: one scaling for all, computed from all; nobody hangs, and nothing is pickled."""

import contextlib
import copy
import math
import re
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from spatialgrad import SpatialGradientScaling
from support.common import STEPS_ALIKE, TinyNet, images, loss_of, same_matrices, some_scalings, step_by_hand_
from support.ranks import Failure

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(200)]

# How the batches 0, 1, 2, … are spread over the two processes.
SPREADS = {"even": ([0, 1], [2, 3]), "uneven": ([0, 1, 2], [3]), "nothing for one": ([], [0, 1])}
FULLY_SHARD = pytest.param(
    "fully_shard",
    marks=pytest.mark.skipif(
        not hasattr(torch.cpu.Stream, "record_event"), reason="this torch shards on GPUs only, as 2.6 does"
    ),
)
WRAPPERS = ["plain", "ddp", FULLY_SHARD]


class OddNet(nn.Module):
    """Widths that two processes cannot share equally: one shard of `narrow` is empty."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.wide = nn.Conv2d(5, 6, (1, 3))
        self.last = nn.Conv2d(6, 3, 3)
        self.narrow = nn.Conv2d(3, 1, 3)
        self.head = nn.Linear(1, 5)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.head(self.narrow(self.last(self.wide(x).relu()).relu()).mean((2, 3)))


def wrap(model, how):
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fully_shard":
        for module in (model.first, model.wide, model.last):
            fully_shard(module)
        return fully_shard(model)
    return model


def build(how="plain", net=OddNet, **settings):
    torch.manual_seed(0)
    model = wrap(net(), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, SpatialGradientScaling(model, optimizer, **settings)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def weights_of(model):
    return {name.removeprefix("module."): whole(p.detach()).clone() for name, p in model.named_parameters()}


def own_share(spread):
    return [images(seed=number) for number in spread[dist.get_rank()]]


# What the processes run


def update(spread, how, settings):
    _, _, sgs = build(how, **settings)
    return sgs.update(own_share(spread))


def update_with_own_settings(by_rank):
    """Processes whose settings differ, and then the same ones with the same settings."""
    settings = dict(by_rank[dist.get_rank()])
    if "exclude" in settings:
        name = settings["exclude"]
        settings["exclude"] = lambda other, _: other == name
    _, _, sgs = build(**settings)
    try:
        sgs.update(own_share(SPREADS["even"]))
        outcome = "no error"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome, sgs.num_updates, build()[2].update(own_share(SPREADS["even"]))


def update_with(trouble, how):
    """One process meets a trouble of its own; then both go on together."""
    model, _, sgs = build(how)
    good = own_share(([0, 1], [2, 3]))
    before = sgs.update(good)
    bad = {
        "fails in its forward pass": lambda: [good[0], (torch.rand(2, 7, 10, 10), None)],
        "fails while it loads": broken_loader,
        "fails before its first batch": lambda: 3,
        "fails in a one-shot iterator": lambda: iter(broken_loader()),
        "has maps that are too small": lambda: [(torch.rand(2, 3, 4, 3), None)],
        "meets a NaN": lambda: [good[0], (torch.full_like(good[1][0], math.nan), None)],
        "has fewer batches and takes warnings for errors": lambda: BatchLoader(good),
    }
    data = bad[trouble]() if dist.get_rank() == 1 else BatchLoader(good, 3)
    try:
        sgs.update(data, batches=3)
        outcome = "no error"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    untouched = same_matrices(sgs.scalings, before) and all(module.training for module in model.modules())
    return outcome, untouched, same_matrices(sgs.update(good), before)


class BatchLoader:
    """Batches over and over, up to a number of them: unlike a list, it may have fewer than were asked for."""

    def __init__(self, batches, number=None):
        self.batches, self.number = batches, number or len(batches)

    def __iter__(self):
        return iter((self.batches * self.number)[: self.number])


def broken_loader():
    class Broken:
        def __iter__(self):
            yield images()
            raise OSError("the disk is gone")

    return Broken()


def update_without_batches(how):
    return build(how)[2].update([])


def update_and_record_traffic():
    """Every collective but a plain all-reduce of tensors is forbidden, and the bytes of those are counted."""
    _, _, sgs = build()
    sent, real = [], dist.all_reduce

    def recording(tensor, *args, **kwargs):
        sent.append(tensor.nbytes)
        return real(tensor, *args, **kwargs)

    collectives = [
        name
        for name in dir(dist)
        if name.startswith(("all_gather", "all_to_all", "broadcast", "gather", "reduce", "scatter", "send", "recv"))
        and callable(getattr(dist, name))
        and not isinstance(getattr(dist, name), type)
    ]
    with contextlib.ExitStack() as stack:
        for name in collectives:
            stack.enter_context(mock.patch.object(dist, name, side_effect=AssertionError(name)))
        stack.enter_context(mock.patch.object(dist, "all_reduce", recording))
        stack.enter_context(mock.patch("pickle.dumps", side_effect=AssertionError("pickle")))
        sgs.update([images(64, seed=dist.get_rank(), size=32)])
    return sum(sent), collectives


def update_in_groups_of_one():
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    _, _, sgs = build(process_group=groups[dist.get_rank()])
    return sgs.update(own_share(([0, 1], [2, 3, 4])))


def update_where_one_process_calls_other_layers():
    _, _, sgs = build(net=TinyNet)
    branch = (lambda model, batch: model(batch[0])) if dist.get_rank() else (lambda model, batch: model.first(batch[0]))
    return sgs.update(own_share(([0], [1])), forward=branch)


def train(how, apply, accumulate=1):
    """Steps with each process's own half of the data; returns the whole weights and the scalings."""
    model, optimizer, sgs = build(how, TinyNet, measure=None, scalings=some_scalings(), apply=apply)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(accumulate):
            last = micro == accumulate - 1
            if how == "fully_shard":
                model.set_requires_gradient_sync(last)
            quiet = model.no_sync() if how == "ddp" and not last else contextlib.nullcontext()
            with quiet:
                loss_of(model, images(seed=100 * step + 10 * micro + dist.get_rank())).backward()
        optimizer.step()
    return weights_of(model), sgs.scalings


def train_around_updates(how, spread):
    """Two updates in the middle of a training, one of them broken off: what else changes?"""
    results = []
    for measured in (False, True):
        model, optimizer, sgs = build(how, TinyNet)
        for step in range(3):
            if measured and step == 1:
                sgs.update(own_share(spread))
                sgs.set_scalings({name: torch.ones_like(G) for name, G in sgs.scalings.items()})
            if measured and step == 2:
                with contextlib.suppress(RuntimeError):
                    sgs.update([(torch.rand(2, 3 + dist.get_rank(), 10, 10), None)])
            optimizer.zero_grad()
            loss_of(model, images(seed=10 * step + dist.get_rank())).backward()
            optimizer.step()
        results.append(weights_of(model))
    return results


def resume(how):
    """The state of one training, taken over by another."""
    _, _, sgs = build(how)
    sgs.update(own_share(([0, 1], [2])))
    _, _, fresh = build(how)
    fresh.load_state_dict(copy.deepcopy(sgs.state_dict()))
    return sgs.scalings, fresh.scalings, sgs.dependence, fresh.dependence


# What must come of it


def alone(spread, **settings):
    """One process that sees the batches of all."""
    return build(**settings)[2].update([images(seed=number) for share in spread for number in share])


@pytest.mark.bits
@pytest.mark.parametrize("how", WRAPPERS)
@pytest.mark.parametrize("spread", SPREADS)
def test_every_process_has_the_scaling_of_one_that_sees_all(ranks, spread, how):
    first, second = ranks.values(update, SPREADS[spread], how, {})
    assert same_matrices(first, second)
    assert same_matrices(first, alone(SPREADS[spread]))
    assert set(first) == {"first", "wide", "last", "narrow"}
    assert not any(torch.equal(G, torch.ones_like(G)) for G in first.values())


@pytest.mark.bits
@pytest.mark.parametrize("settings", [{"drop_near": True}, {"bins": 12}])
@pytest.mark.parametrize("spread", ["uneven", "nothing for one"])
def test_variants_of_the_mutual_information(ranks, spread, settings):
    first, second = ranks.values(update, SPREADS[spread], "plain", settings)
    assert same_matrices(first, second)
    assert same_matrices(first, alone(SPREADS[spread], **settings))


@pytest.mark.parametrize("spread", SPREADS)
def test_autocorrelation(ranks, spread):
    settings = {"dependence": "autocorrelation"}
    first, second = ranks.values(update, SPREADS[spread], "plain", settings)
    assert same_matrices(first, second)
    for name, G in alone(SPREADS[spread], **settings).items():
        torch.testing.assert_close(first[name], G, atol=1e-6, rtol=1e-6)  # sums in another order


@pytest.mark.parametrize("how", WRAPPERS)
@pytest.mark.parametrize(
    ("trouble", "its_error"),
    [
        ("fails in its forward pass", "RuntimeError: .*channels"),
        ("fails while it loads", "OSError: the disk is gone"),
        ("fails before its first batch", "TypeError: Expected a loader"),
        ("fails in a one-shot iterator", "OSError: the disk is gone"),
        ("has maps that are too small", "ValueError: Cannot measure the input of 'last'"),
    ],
)
def test_where_one_process_fails_all_raise(ranks, trouble, its_error, how):
    other, failing = ranks.values(update_with, trouble, how)
    assert other[0] == "RuntimeError: Another process failed while measuring its batches; see its error."
    assert re.match(its_error, failing[0])
    # nothing has changed, and the next update of both works as ever
    assert other[1:] == failing[1:] == (True, True)


@pytest.mark.parametrize(
    ("by_rank", "what"),
    [
        (({}, {"exclude": "wide"}), "convolutions"),
        (({"exclude": "first"}, {"exclude": "last"}), "convolutions"),
        (({"dependence": "autocorrelation"}, {}), "dependence"),
        (({"measure": None}, {}), "dependence"),
        (({"bins": 8}, {"bins": 9}), "dependence"),
        (({"drop_near": True}, {}), "dependence"),
        (({}, {"k": 6}), "k"),
        (({"k": 6}, {"exclude": "wide"}), "convolutions, k"),
    ],
)
def test_processes_that_disagree_all_raise(ranks, by_rank, what):
    results = ranks.values(update_with_own_settings, by_rank)
    for rank, (outcome, num_updates, _) in enumerate(results):
        assert outcome.startswith(f"ValueError: The processes disagree on {what}. Process {rank} has ")
        assert num_updates == 0
    assert same_matrices(results[0][2], results[1][2])


@pytest.mark.parametrize("how", WRAPPERS)
def test_a_nan_on_one_process_raises_on_all_and_names_the_layer(ranks, how):
    for outcome, untouched, goes_on in ranks.values(update_with, "meets a NaN", how):
        assert outcome == "ValueError: Cannot measure the input of 'first': the maps contain NaN or infinite values."
        assert untouched
        assert goes_on


def test_a_warning_taken_for_an_error_keeps_nobody_waiting(ranks):
    other, strict = ranks.values(update_with, "has fewer batches and takes warnings for errors", "plain")
    assert other[0] == "no error"
    assert strict[0] == "UserWarning: The loader has only 2 of the requested 3 batches."


@pytest.mark.parametrize("how", WRAPPERS)
def test_no_batch_on_any_process(ranks, how):
    for result in ranks.run(update_without_batches, how):
        assert result == Failure("ValueError", "The loader is empty: there is no batch to measure.")


def test_only_ranges_and_counts_travel_and_no_objects(ranks):
    (traffic, collectives), _ = ranks.values(update_and_record_traffic)
    assert {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"} <= set(collectives)
    maps = 64 * 5 * 32 * 32 * 4  # the input of one convolution alone
    assert 0 < traffic < maps / 10


def test_a_process_group_of_one_keeps_to_itself(ranks):
    for share, G in zip(([0, 1], [2, 3, 4]), ranks.values(update_in_groups_of_one), strict=True):
        assert same_matrices(G, alone([share]))


def test_layers_that_only_one_process_calls(ranks):
    first, second = ranks.values(update_where_one_process_calls_other_layers)
    assert same_matrices(first, second)
    assert same_matrices({"wide": first["wide"]}, {"wide": build(net=TinyNet)[2].update([images(seed=1)])["wide"]})


@pytest.mark.bits
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("apply", ["gradient", "update"])
@pytest.mark.parametrize("how", ["ddp", FULLY_SHARD])
def test_training_is_that_of_one_process_with_all_data(ranks, how, apply, accumulate):
    (first, scalings), (second, other_scalings) = ranks.values(train, how, apply, accumulate)
    assert same_matrices(first, second)
    assert same_matrices(scalings, some_scalings())
    assert same_matrices(other_scalings, some_scalings())

    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(accumulate):
            for rank in range(2):
                (loss_of(model, images(seed=100 * step + 10 * micro + rank)) / 2).backward()
        step_by_hand_(model, optimizer, some_scalings(), apply)
    expected = weights_of(model)
    assert first.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, **STEPS_ALIKE, msg=name)


@pytest.mark.bits
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("how", ["ddp", FULLY_SHARD])
def test_updates_leave_the_training_as_it_was(ranks, how, spread):
    for plain, measured in ranks.values(train_around_updates, how, SPREADS[spread]):
        assert same_matrices(plain, measured)


@pytest.mark.bits
@pytest.mark.parametrize("how", WRAPPERS)
def test_the_state_is_whole_on_every_process(ranks, how):
    sgs = build()[2]
    sgs.update([images(seed=number) for number in range(3)])
    for G, restored_G, S, restored_S in ranks.values(resume, how):
        assert same_matrices(G, restored_G)
        assert same_matrices(G, sgs.scalings)
        assert same_matrices(S, restored_S)
        assert same_matrices(S, sgs.dependence)
