"""Live updates in two real processes: one scaling for all, from what all of them see; nobody hangs."""

import io

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from sgs.test_distributed import FULLY_SHARD, WRAPPERS, OddNet, weights_of, wrap
from spatialgrad import Live, SpatialGradientScaling
from support.common import MATRICES_ALIKE, close_matrices, images, loss_of, same_matrices, train_
from support.live import SCHEDULE, STEPS, hooks_on, recording, scalings_by_hand
from support.ranks import Failure

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(200)]

LAYERS = ("first", "wide", "last", "narrow")


def build(how, live=SCHEDULE, seed=0, **settings):
    torch.manual_seed(seed)
    model = wrap(OddNet(), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, SpatialGradientScaling(model, optimizer, live=live, **settings)


def share(step, rank=None):
    """The batch of a step of a process; they differ in their values and, every third step, in their size."""
    rank = dist.get_rank() if rank is None else rank
    x, y = images(8 - 3 * rank * (step % 3 == 0), seed=2 * step + rank)
    return x * (1 + 0.1 * step + rank), y


# What the processes run


def train(how, settings):
    model, optimizer, sgs = build(how, **settings)
    train_(model, optimizer, [share(step) for step in range(STEPS)])
    return sgs.scalings, sgs.num_updates, hooks_on(model), weights_of(model)


def train_and_record(how):
    """The scalings, and the maps of this process from which they must follow."""
    model, optimizer, sgs = build(how)
    inner = model.module if how == "ddp" else model
    seen = {"ranges": {}, "counts": {}}
    for step in range(6):
        with recording(inner, seen["ranges" if step in (2, 3) else "counts"] if step > 1 else {}, LAYERS):
            loss = loss_of(model, share(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sgs.scalings, seen


def train_and_resume(how, stop):
    """Every process resumes from the state of the first one, as from a checkpoint that only that one has written."""
    data = [share(step) for step in range(STEPS)]
    model, optimizer, sgs = build(how)
    train_(model, optimizer, data[:stop])
    own = {name: value.clone() for name, value in model.state_dict().items()}
    file = io.BytesIO()
    torch.save(sgs.state_dict(), file)
    everyone = [None, None]
    dist.all_gather_object(everyone, file.getvalue())
    model, optimizer, sgs = build(how)
    model.load_state_dict(own)
    sgs.load_state_dict(torch.load(io.BytesIO(everyone[0]), weights_only=True))
    train_(model, optimizer, data[stop:])
    return sgs.scalings, sgs.num_updates


def train_without_last_batch(how):
    """The second process has nothing in the last steps: an empty batch, or no forward pass at all."""
    model, optimizer, sgs = build(how)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = share(step)
        if dist.get_rank() == 1 and step in (3, 5):
            if how == "plain":
                optimizer.step()
                continue
            x, y = x[:0], y[:0]
        # The mean over an empty batch would be NaN.
        torch.nn.functional.cross_entropy(model.train()(x), y, reduction="sum").backward()
        optimizer.step()
    return sgs.scalings, sgs.num_updates


def train_within_join():
    model, optimizer, _ = build("ddp", live=Live(at=(0,), every=8))
    try:
        with Join([model]):
            train_(model, optimizer, [share(step) for step in range(3)])
    except RuntimeError as error:
        return str(error)
    return "no error"


def train_with_own_settings(by_rank):
    model, optimizer, sgs = build("plain", **by_rank[dist.get_rank()])
    train_(model, optimizer, [share(step) for step in range(STEPS)])
    return sgs.num_updates


def train_with_nan():
    model, optimizer, sgs = build("plain")
    before = sgs.scalings
    outcome = "no warning"
    for step in range(6):
        x, y = share(step)
        if dist.get_rank() == 1 and step == 2:
            x[0, 0, 0, 0] = float("nan")
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        try:
            train_(model, optimizer, [(x, y)])
        except UserWarning as warning:
            outcome = str(warning)
        model.load_state_dict(weights)
    return outcome, same_matrices(sgs.scalings, before), sgs.num_updates


# The tests


@pytest.mark.parametrize("how", WRAPPERS)
@pytest.mark.parametrize("settings", [{}, {"drop_near": True}, {"dependence": "autocorrelation"}, {"memory": 6000}])
def test_all_processes_have_the_same_scalings(ranks, how, settings):
    settings = settings | ({"live": Live(at=(0,), every=20, batches=1)} if "memory" in settings else {})
    (mine, updates, hooks, weights), (other, *_, other_weights) = ranks.values(train, how, settings)
    assert updates == 1
    assert hooks == 0 or how == "fully_shard"  # which has its own
    assert same_matrices(mine, other)
    assert all(not torch.equal(G, torch.ones_like(G)) for name, G in mine.items() if name != "narrow")
    if how != "plain":
        assert same_matrices(weights, other_weights)


@pytest.mark.parametrize("how", ["plain", "ddp"])
def test_they_are_those_of_all_maps_together(ranks, how):
    (mine, seen), (_, also) = ranks.values(train_and_record, how)
    together = {
        kind: {name: seen[kind][name] + also[kind][name] for name in seen[kind]} for kind in ("ranges", "counts")
    }
    by_hand = scalings_by_hand(OddNet(), **together)
    assert close_matrices(mine, by_hand, MATRICES_ALIKE)
    alone = scalings_by_hand(OddNet(), **seen)
    assert not close_matrices(mine, alone, MATRICES_ALIKE)


@pytest.mark.parametrize("how", ["ddp", FULLY_SHARD])
@pytest.mark.parametrize("stop", [3, 4, 5])
def test_they_resume_from_the_state_of_the_first_process(ranks, how, stop):
    whole = ranks.values(train, how, {})[0][0]
    (mine, updates), (other, _) = ranks.values(train_and_resume, how, stop)
    assert updates == 1
    assert same_matrices(mine, other)
    assert same_matrices(mine, whole)


@pytest.mark.parametrize("how", WRAPPERS)
def test_a_process_without_a_last_batch_is_not_waited_for(ranks, how):
    (mine, updates), (other, _) = ranks.values(train_without_last_batch, how)
    assert updates == 1
    assert same_matrices(mine, other)


def test_within_join_all_processes_stop_with_an_error(ranks):
    assert all("Join" in outcome for outcome in ranks.values(train_within_join))


@pytest.mark.parametrize(
    ("other", "message"),
    [({"live": Live(at=(2,), every=9)}, "live"), ({"k": 3.0}, "k"), ({"memory": 10_000}, "memory")],
)
def test_settings_that_differ_are_refused_everywhere(ranks, other, message):
    for outcome in ranks.run(train_with_own_settings, [{}, other]):
        assert isinstance(outcome, Failure)
        assert f"The processes disagree on {message}" in outcome.message


def test_a_nan_in_one_process_keeps_the_scalings_of_all(ranks):
    for outcome, untouched, updates in ranks.values(train_with_nan):
        assert "NaN or infinite inputs" in outcome
        assert untouched
        assert updates == 1
