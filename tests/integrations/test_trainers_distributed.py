"""Lightning, Transformers and Accelerate with two real processes."""

import importlib
import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from spatialgrad import SpatialGradientScaling
from support.common import (
    MATRICES_ALIKE,
    UPDATES_ALIKE,
    TinyNet,
    close_weights,
    dataset,
    define_torchvision_operators,
    loss_of,
    rows,
    step_by_hand_,
)
from support.ranks import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ranks():
    """Processes of their own: the trainers change the environment of theirs."""
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


def share(rank, step):
    """The batch of a process that takes every second image."""
    return dataset()[torch.arange(rank, 32, 2)[4 * step : 4 * step + 4]]


def by_hand(epochs, share=share):
    """One process that sees the batches of both; an update before the second epoch."""
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    G = {}
    for epoch in range(epochs):
        if epoch == 1:
            sgs = SpatialGradientScaling(model, optimizer)
            G = sgs.update([share(rank, step) for rank in range(2) for step in range(2)])
            sgs.detach()
        for step in range(4):
            optimizer.zero_grad()
            for rank in range(2):
                (loss_of(model, share(rank, step)) / 2).backward()
            step_by_hand_(model, optimizer, G, "gradient")
    return model, G


def assert_as_by_hand(results, share=share):
    expected, G = by_hand(2, share)
    for weights, scalings in results:
        model = TinyNet()
        model.load_state_dict(weights)
        assert close_weights(model, expected, UPDATES_ALIKE)
        assert len(scalings) == len(G)
        for value, reference in zip(scalings.values(), G.values(), strict=True):
            torch.testing.assert_close(value, reference, **MATRICES_ALIKE)


# What the processes run


def fit_with_lightning():
    warnings.filterwarnings("ignore", ".*does not have many workers")
    warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.` is deprecated", FutureWarning)
    from support.lightning_module import QUIET, Module, pl

    callbacks = importlib.import_module("spatialgrad.integrations.lightning")

    environments = importlib.import_module("lightning.fabric.plugins.environments")

    class Environment(environments.LightningEnvironment):
        creates_processes_externally = True

        def world_size(self):
            return dist.get_world_size()

        def global_rank(self):
            return dist.get_rank()

        def local_rank(self):
            return dist.get_rank()

    torch.manual_seed(0)
    module, callback = Module(), callbacks.SpatialGradientScalingCallback()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=pl.strategies.DDPStrategy(cluster_environment=Environment(), process_group_backend="gloo"),
        use_distributed_sampler=False,  # it would shuffle
        max_epochs=2,
        callbacks=[callback],
        **QUIET,
    )
    trainer.fit(module, DataLoader(dataset(), 4, sampler=DistributedSampler(dataset(), shuffle=False)))
    return module.net.state_dict(), callback.scaling.scalings


def tell_the_environment():
    os.environ.update(
        RANK=str(dist.get_rank()),
        LOCAL_RANK=str(dist.get_rank()),
        WORLD_SIZE=str(dist.get_world_size()),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29999",
        ACCELERATE_USE_CPU="true",
        OMP_NUM_THREADS="1",
    )


def train_with_accelerate():
    tell_the_environment()
    from accelerate import Accelerator

    torch.manual_seed(0)
    model = TinyNet()
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(dataset(), 4))
    sgs = SpatialGradientScaling(model, optimizer)
    for epoch in range(2):
        if sgs.due(epoch):
            sgs.update(loader, batches=2)
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
    assert accelerator.num_processes == 2
    return accelerator.unwrap_model(model).state_dict(), sgs.scalings


def train_with_transformers(folder):
    tell_the_environment()
    define_torchvision_operators()
    transformers = importlib.import_module("transformers")
    callbacks = importlib.import_module("spatialgrad.integrations.transformers")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = TinyNet()
            self.shown, self.measured = [], []

        def forward(self, pixel_values, labels, index):
            (self.shown if self.training else self.measured).append(index.tolist())
            return {"loss": loss_of(self.net, (pixel_values, labels))}

    torch.manual_seed(0)
    model, callback = Model(), callbacks.SpatialGradientScalingCallback()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            remove_unused_columns=False,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            num_train_epochs=2,
            per_device_train_batch_size=4,
        ),
        train_dataset=rows(),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None),
        callbacks=[callback],
    )
    trainer.train()
    return model.net.state_dict(), callback.scaling.scalings, model.shown, model.measured


# What must come of it


def test_lightning(ranks):
    assert_as_by_hand(ranks.values(fit_with_lightning))


def test_accelerate(ranks):
    def whole_batches(rank, step):
        return dataset()[torch.arange(8 * step + 4 * rank, 8 * step + 4 * rank + 4)]

    assert_as_by_hand(ranks.values(train_with_accelerate), whole_batches)


def test_transformers(ranks, tmp_path):
    results = ranks.values(train_with_transformers, str(tmp_path))
    (weights, G, *_), (other_weights, other_G, *_) = results
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    assert all(torch.equal(G[name], other_G[name]) for name in G)

    # the Trainer shuffles, so the batches are those that it showed to the processes
    torch.manual_seed(0)
    data, model = dataset(), TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scalings = {}
    for step in range(8):
        if step == 4:
            sgs = SpatialGradientScaling(model, optimizer)
            scalings = sgs.update([data[rows] for *_, measured in results for rows in measured[:2]])
            sgs.detach()
            for name, value in scalings.items():
                torch.testing.assert_close(G[f"net.{name}"], value, **MATRICES_ALIKE)
        optimizer.zero_grad()
        for _, _, shown, _ in results:
            (loss_of(model, data[shown[step]]) / 2).backward()
        step_by_hand_(model, optimizer, scalings, "gradient")
    trained = TinyNet()
    trained.load_state_dict(weights)
    assert close_weights(trained, model, UPDATES_ALIKE)
