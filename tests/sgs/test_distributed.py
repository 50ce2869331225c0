"""Real processes: one scaling for all, computed from all; nobody hangs, and nothing is pickled."""

import contextlib
import copy
import io
import math
import re
import warnings
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from spatialgrad import Live, SpatialGradientScaling
from support.common import (
    MATRICES_ALIKE,
    STEPS_ALIKE,
    TinyNet,
    close_matrices,
    images,
    loss_of,
    same_matrices,
    some_scalings,
    step_by_hand_,
    train_,
)
from support.live import SCHEDULE, STEPS, hooks_on, recording, scalings_by_hand
from support.ranks import Failure

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(300)]

# How the batches 0, 1, 2, … are spread over the two processes.
SPREADS = {"even": ([0, 1], [2, 3]), "uneven": ([0, 1, 2], [3]), "nothing for one": ([], [0, 1])}
NO_FSDP = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="this torch shards on GPUs only, as 2.6 does"
)
SHARDED = pytest.param("fully_shard", marks=NO_FSDP)
WRAPPERS = ["plain", "ddp", SHARDED]
LAYERS = ("first", "wide", "last", "narrow")


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
    if how.startswith("ddp"):
        # Gradients that are views of DDP's buckets are written without a new version of the gradients.
        return DistributedDataParallel(model, gradient_as_bucket_view=how == "ddp with views")
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


def weights_of(model):
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    return {name.removeprefix("module."): p.detach().clone() for name, p in whole.items()}


def own_share(spread):
    return [images(seed=number) for number in spread[dist.get_rank()]]


def outcome_of(action):
    try:
        action()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class BatchLoader:
    """Batches over and over, up to a number of them: unlike a list, it may have fewer than were asked for."""

    def __init__(self, batches, number=None, error=None):
        self.batches, self.number, self.error = batches, number or len(batches), error

    def __iter__(self):
        yield from (self.batches * self.number)[: self.number]
        if self.error:
            raise self.error


# Updates


def update(spread, how, settings):
    return build(how, **settings)[2].update(own_share(spread))


def alone(spread, **settings):
    """One process that sees the batches of all."""
    return build(**settings)[2].update([images(seed=number) for share in spread for number in share])


@pytest.mark.bits
@pytest.mark.parametrize(
    ("spread", "how", "settings"),
    [
        ("even", "plain", {}),
        ("even", "ddp", {}),
        pytest.param("even", "fully_shard", {}, marks=NO_FSDP),
        ("uneven", "ddp", {}),
        pytest.param("uneven", "fully_shard", {"max_channels": 2}, marks=NO_FSDP),
        ("nothing for one", "plain", {}),
        pytest.param("nothing for one", "fully_shard", {}, marks=NO_FSDP),
        ("uneven", "plain", {"drop_near": True}),
        ("nothing for one", "plain", {"drop_near": True}),
        ("uneven", "plain", {"bins": 12}),
        ("uneven", "plain", {"measure": "autocorrelation"}),
        ("nothing for one", "plain", {"measure": "autocorrelation"}),
    ],
)
def test_every_process_has_the_scaling_of_one_that_sees_all(ranks, spread, how, settings):
    first, second = ranks.values(update, SPREADS[spread], how, settings)
    assert same_matrices(first, second)
    assert set(first) == set(LAYERS)
    assert not any(torch.equal(G, torch.ones_like(G)) for G in first.values())
    expected = alone(SPREADS[spread], **settings)
    if "measure" in settings:  # sums in another order
        assert close_matrices(first, expected, {"atol": 1e-6, "rtol": 1e-6})
    else:
        assert same_matrices(first, expected)


def update_with(trouble, how):
    """One process meets a trouble of its own; then both go on together."""
    model, _, sgs = build(how)
    good = own_share(SPREADS["even"])
    before = sgs.update(good)
    troubles = {
        "forward": lambda: [good[0], (torch.rand(2, 7, 10, 10), None)],
        "loader": lambda: BatchLoader(good[:1], error=OSError("the disk is gone")),
        "iterator": lambda: iter(BatchLoader(good[:1], error=OSError("the disk is gone"))),
        "data": lambda: 3,
        "interrupt": lambda: BatchLoader(good[:1], error=KeyboardInterrupt("Ctrl-C")),
        "nan": lambda: [good[0], (torch.full_like(good[1][0], math.nan), None)],
        "fewer": lambda: BatchLoader(good),
    }
    data = troubles[trouble]() if dist.get_rank() == 1 else BatchLoader(good, 3)
    outcome = outcome_of(lambda: sgs.update(data, batches=3))
    untouched = all(module.training for module in model.modules())
    untouched &= trouble == "fewer" or same_matrices(sgs.scalings, before)
    return outcome, untouched, same_matrices(sgs.update(good), before)


OTHER_FAILED = "RuntimeError: Another process failed in this step; see its error."
NAN = "NoEffectWarning: Convolutions first, wide, last, narrow had NaN or infinite inputs and keep their scalings."


@pytest.mark.parametrize(
    ("trouble", "how", "its_error", "other_error"),
    [
        ("forward", "plain", "RuntimeError: .*channels", OTHER_FAILED),
        ("forward", "ddp", "RuntimeError: .*channels", OTHER_FAILED),
        pytest.param("forward", "fully_shard", "RuntimeError: .*channels", OTHER_FAILED, marks=NO_FSDP),
        ("loader", "plain", "OSError: the disk is gone", OTHER_FAILED),
        pytest.param("loader", "fully_shard", "OSError: the disk is gone", OTHER_FAILED, marks=NO_FSDP),
        ("iterator", "plain", "OSError: the disk is gone", OTHER_FAILED),
        ("data", "plain", "TypeError: Expected a loader", OTHER_FAILED),
        ("interrupt", "plain", "KeyboardInterrupt: Ctrl-C", OTHER_FAILED),
        # What cannot be measured stops nobody; warnings are errors in these processes, after everything is written.
        ("nan", "plain", NAN, NAN),
        pytest.param("nan", "fully_shard", NAN, NAN, marks=NO_FSDP),
        ("fewer", "plain", "UserWarning: The loader has only 2 of the requested 3 batches.", "no error"),
    ],
)
def test_a_trouble_of_one_process_is_known_to_all_and_they_go_on(ranks, trouble, how, its_error, other_error):
    other, troubled = ranks.values(update_with, trouble, how)
    assert re.match(other_error, other[0])
    assert re.match(its_error, troubled[0])
    assert other[1:] == troubled[1:] == (True, True)


@pytest.mark.parametrize("how", WRAPPERS)
def test_no_batch_on_any_process(ranks, how):
    for result in ranks.run(update, ([], []), how, {}):
        assert result == Failure("ValueError", "The loader is empty: there is no batch to measure.")


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


def test_only_ranges_and_counts_travel_and_no_objects(ranks):
    (traffic, collectives), _ = ranks.values(update_and_record_traffic)
    assert {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"} <= set(collectives)
    maps = 64 * 5 * 32 * 32 * 4  # the input of one convolution alone
    assert 0 < traffic < maps / 10


def update_where_one_process_calls_other_layers():
    _, _, sgs = build(net=TinyNet)
    branch = (lambda model, batch: model(batch[0])) if dist.get_rank() else (lambda model, batch: model.first(batch[0]))
    return sgs.update(own_share(([0], [1])), forward=branch)


def test_layers_that_only_one_process_calls(ranks):
    first, second = ranks.values(update_where_one_process_calls_other_layers)
    assert same_matrices(first, second)
    assert torch.equal(first["wide"], build(net=TinyNet)[2].update([images(seed=1)])["wide"])


# By group of four processes: its members, the batches of each, and the settings, which differ between the groups.
MEMBERS, SHARES, K = ([0, 1], [2, 3]), {0: [0, 1], 1: [2], 2: [3], 3: [4]}, (4, 6)


def update_in_groups(fails):
    groups, number = [dist.new_group(members) for members in MEMBERS], dist.get_rank() // 2
    _, _, sgs = build(net=TinyNet, process_group=groups[number], k=K[number])
    bad = [(torch.rand(2, 7, 10, 10), None)]
    data = bad if fails and dist.get_rank() == 0 else [images(seed=seed) for seed in SHARES[dist.get_rank()]]
    return outcome_of(lambda: sgs.update(data)), sgs.scalings


@pytest.mark.bits
def test_each_process_group_keeps_to_itself(four_ranks):
    results = [scalings for _, scalings in four_ranks.values(update_in_groups, False)]
    for number, members in enumerate(MEMBERS):
        expected = alone([SHARES[rank] for rank in members], net=TinyNet, k=K[number])
        assert all(same_matrices(results[rank], expected) for rank in members)
    assert not same_matrices(results[0], results[2])
    (failing, _), (partner, _), *others = four_ranks.values(update_in_groups, True)
    assert "channels" in failing
    assert partner == OTHER_FAILED
    assert [outcome for outcome, _ in others] == ["no error"] * 2


# Agreement


def disagree(by_rank):
    """Processes whose settings differ, and then the same ones with the same settings."""
    settings = dict(by_rank[dist.get_rank()])
    excluded, given, state, action = (settings.pop(name, None) for name in ("excluded", "given", "state", "action"))
    exclude = None if excluded is None else lambda name, _: name == excluded
    model, optimizer, sgs = build(net=TinyNet, exclude=exclude, **settings)
    if given:
        sgs.set_scalings(torch.full((3, 3), given))
    if state:
        sgs.load_state_dict(sgs.state_dict() | {"live": [{"step": state, "updating": False}]})

    def act():
        train_(model, optimizer, [images()]) if action == "step" else sgs.update(own_share(SPREADS["even"]))

    outcome, before = outcome_of(act), sgs.num_updates
    return outcome, before, build()[2].update(own_share(SPREADS["even"]))


STEP, STATIC, LIVE = {"action": "step"}, {"action": "step", "measure": None}, {"action": "step", "live": SCHEDULE}


@pytest.mark.parametrize(
    ("by_rank", "what"),
    [
        (({}, {"excluded": "wide"}), "convolutions, scalings"),
        (({"excluded": "first"}, {"excluded": "last"}), "convolutions"),
        (({"measure": "autocorrelation"}, {}), "measure"),
        (({"bins": 8}, {"bins": 9}), "measure"),
        (({"drop_near": True}, {}), "measure"),
        (({"max_channels": 3}, {}), "measure"),
        (({"k": 6}, {"excluded": "wide"}), "convolutions, scalings, k"),
        ((STATIC | {"given": 0.5}, STATIC | {"given": 2.0}), "scalings"),
        ((STEP | {"given": 0.5}, STEP), "scalings"),
        ((STATIC, STEP), "measure"),
        ((STEP, STEP | {"k": 6}), "k"),
        ((LIVE, LIVE | {"live": Live(at=(2,), every=9)}), "live"),
        ((LIVE, STEP), "live"),
        ((LIVE, LIVE | {"state": 3}), "step"),
        (({}, STEP), "call"),
    ],
)
def test_processes_that_disagree_all_raise(ranks, by_rank, what):
    results = ranks.values(disagree, by_rank)
    for rank, (outcome, num_updates, _) in enumerate(results):
        assert outcome.startswith(f"ValueError: The processes disagree on {what}")
        assert f"Process {rank} has " in outcome
        assert num_updates == 0
    assert same_matrices(results[0][2], results[1][2])


# Training


def train(how, apply, accumulate, set_to_none):
    """Steps with each process's own half of the data; returns the whole weights and the scalings."""
    model, optimizer, sgs = build(how, TinyNet, measure=None, scalings=some_scalings(), apply=apply)
    for step in range(3):
        optimizer.zero_grad(set_to_none)
        for micro in range(accumulate):
            last = micro == accumulate - 1
            if how == "fully_shard":
                model.set_requires_gradient_sync(last)
            quiet = model.no_sync() if hasattr(model, "no_sync") and not last else contextlib.nullcontext()
            with quiet:
                loss_of(model, images(seed=100 * step + 10 * micro + dist.get_rank())).backward()
        optimizer.step()
    return weights_of(model), sgs.scalings


@pytest.mark.bits
@pytest.mark.parametrize(
    ("apply", "accumulate", "set_to_none"), [("gradient", 1, True), ("gradient", 2, False), ("update", 2, True)]
)
@pytest.mark.parametrize("how", ["ddp", "ddp with views", SHARDED])
def test_training_is_that_of_one_process_with_all_data(ranks, how, apply, accumulate, set_to_none):
    (first, scalings), (second, other_scalings) = ranks.values(train, how, apply, accumulate, set_to_none)
    assert same_matrices(first, second)
    assert same_matrices(scalings, some_scalings())
    assert same_matrices(other_scalings, some_scalings())

    model, optimizer, sgs = build(net=TinyNet)
    sgs.detach()
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(accumulate):
            for rank in range(2):
                (loss_of(model, images(seed=100 * step + 10 * micro + rank)) / 2).backward()
        step_by_hand_(model, optimizer, some_scalings(), apply)
    assert close_matrices(first, weights_of(model), STEPS_ALIKE)


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
            train_(model, optimizer, [images(seed=10 * step + dist.get_rank())])
        results.append(weights_of(model))
    return results


@pytest.mark.bits
@pytest.mark.parametrize("how", ["ddp", SHARDED])
def test_updates_leave_the_training_as_it_was(ranks, how):
    for plain, measured in ranks.values(train_around_updates, how, SPREADS["nothing for one"]):
        assert same_matrices(plain, measured)


# Live updates


def share(step):
    """The batch of a step of a process; they differ in their values and, every third step, in their size."""
    rank = dist.get_rank()
    x, y = images(8 - 3 * rank * (step % 3 == 0), seed=2 * step + rank)
    return x * (1 + 0.1 * step + rank), y


def train_live(how, settings):
    """The scalings and weights, and the maps of this process from which the scalings must follow."""
    model, optimizer, sgs = build(how, live=SCHEDULE, **settings)
    inner, seen = (model.module if how == "ddp" else model), {"ranges": {}, "counts": {}}
    for step in range(STEPS):
        with recording(inner, seen["ranges" if step in (2, 3) else "counts"] if 1 < step < 6 else {}, LAYERS):
            loss = loss_of(model, share(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert hooks_on(model) == 0 or how == "fully_shard"  # which has its own
    return sgs.scalings, sgs.num_updates, weights_of(model), seen


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ("plain", {}),
        ("ddp", {}),
        pytest.param("fully_shard", {}, marks=NO_FSDP),
        ("plain", {"drop_near": True}),
        pytest.param("fully_shard", {"measure": "autocorrelation"}, marks=NO_FSDP),
        ("ddp", {"max_channels": 2}),
    ],
)
def test_live_updates_are_those_of_all_maps_together(ranks, how, settings):
    (mine, updates, weights, seen), (other, _, other_weights, also) = ranks.values(train_live, how, settings)
    assert updates == 1
    assert same_matrices(mine, other)
    assert all(not torch.equal(G, torch.ones_like(G)) for name, G in mine.items() if name != "narrow")
    if how != "plain":
        assert same_matrices(weights, other_weights)
    if not settings and how != "fully_shard":
        both = {kind: {name: seen[kind][name] + also[kind][name] for name in LAYERS} for kind in seen}
        assert close_matrices(mine, scalings_by_hand(OddNet(), **both), MATRICES_ALIKE)
        assert not close_matrices(mine, scalings_by_hand(OddNet(), **seen), MATRICES_ALIKE)


def train_and_resume(how, stop):
    """Every process resumes from the state of the first one, as from a checkpoint that only that one has written."""
    data = [share(step) for step in range(STEPS + 2)]
    model, optimizer, sgs = build(how, live=SCHEDULE)
    train_(model, optimizer, data[:stop])
    own, file = copy.deepcopy((model.state_dict(), optimizer.state_dict())), io.BytesIO()
    torch.save(sgs.state_dict(), file)
    everyone = [None, None]
    dist.all_gather_object(everyone, file.getvalue())
    model, optimizer, sgs = build(how, live=SCHEDULE)
    model.load_state_dict(own[0])
    optimizer.load_state_dict(own[1])
    sgs.load_state_dict(torch.load(io.BytesIO(everyone[0]), weights_only=True))
    train_(model, optimizer, data[stop : STEPS + (stop == 4)])  # an update that begins again takes longer
    return sgs.scalings, sgs.num_updates, sgs.dependence


@pytest.mark.parametrize("how", ["ddp", SHARDED])
@pytest.mark.parametrize("stop", [2, 4, 6])  # as an update begins, in its middle, after it
def test_live_updates_resume_from_the_state_of_the_first_process(ranks, how, stop):
    whole = ranks.values(train_live, how, {})[0][0]
    (mine, updates, S), (other, _, other_S) = ranks.values(train_and_resume, how, stop)
    assert updates == 1
    assert same_matrices(mine, other)
    assert same_matrices(S, other_S)
    assert set(S) == set(LAYERS)
    assert same_matrices(mine, whole) == (stop != 4)


def train_with_trouble(how, trouble):
    """The second process has nothing in some steps: an empty batch, or no forward pass at all; or it has a NaN."""
    model, optimizer, sgs = build(how, live=SCHEDULE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = share(step)
            if dist.get_rank() == 1 and trouble == "nan" and step == 5:
                x[0, :, 0, 0] = math.nan
            elif dist.get_rank() == 1 and trouble == "nothing" and step in (3, 5):
                x, y = x[:0], y[:0]
            if len(x) or how != "plain":
                # The mean over an empty batch would be NaN.
                nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
            else:
                for p in model.parameters():
                    p.grad = torch.zeros_like(p)
            optimizer.step()
    return sgs.scalings, sgs.num_updates, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("how", WRAPPERS)
def test_a_process_without_a_batch_is_not_waited_for(ranks, how):
    (mine, updates, _), (other, _, _) = ranks.values(train_with_trouble, how, "nothing")
    assert updates == 1
    assert same_matrices(mine, other)
    assert not torch.equal(mine["first"], torch.ones(3, 3))


@pytest.mark.parametrize("how", ["plain", "ddp"])
def test_a_nan_of_one_process_in_a_live_update_is_known_to_all(ranks, how):
    for scalings, _, messages in ranks.values(train_with_trouble, how, "nan"):
        assert messages == [NAN.removeprefix("NoEffectWarning: ")]
        assert all(torch.equal(G, torch.ones_like(G)) for G in scalings.values())
