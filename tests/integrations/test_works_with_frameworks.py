"""Fabric, Accelerate and timm through plain SpatialGradientScaling, against hand-written training."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from spatialgrad import SpatialGradientScaling, scaling_from_ratios
from support.common import (
    BFLOAT16_ALIKE,
    STEPS_ALIKE,
    TinyNet,
    batches,
    close_weights,
    dataset,
    define_torchvision_operators,
    images,
    loss_of,
    some_scalings,
    step_by_hand_,
    train_,
    train_by_hand_,
)

APPLY = ["gradient", "update"]

# Scaling the gradient of an adaptive optimizer has hardly any effect; that it is done right is tested all the same.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.* normalizes the gradient:spatialgrad.NoEffectWarning"),
]


def loader(shuffle=False, number=32):
    return DataLoader(dataset(number), 8, shuffle=shuffle)


def net_and_twin():
    model = TinyNet()
    return model, copy.deepcopy(model)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def static(model, optimizer, apply="gradient"):
    return SpatialGradientScaling(model, optimizer, measure=None, scalings=some_scalings(), apply=apply)


@pytest.fixture(scope="module")
def Fabric():
    define_torchvision_operators()
    from lightning.fabric import Fabric

    return Fabric


@pytest.fixture
def accelerator(request):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    def forget():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    # A Transformers Trainer, or an example, that ran in this process before leaves its own state behind.
    forget()
    yield Accelerator(cpu=True, **getattr(request, "param", {}))
    forget()


@pytest.fixture(scope="module")
def timm():
    define_torchvision_operators()
    import timm
    import timm.optim
    import timm.utils

    return timm


class TestFabric:
    def start(self, Fabric, precision="32-true"):
        return Fabric(accelerator="cpu", devices=1, precision=precision)

    @pytest.mark.parametrize("apply", APPLY)
    @pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
    def test_training(self, Fabric, precision, apply):
        fabric = self.start(Fabric, precision)
        model, twin = net_and_twin()
        model, mine = fabric.setup(model, sgd(model))
        data = fabric.setup_dataloaders(loader())
        static(model, mine, apply)
        for batch in data:
            mine.zero_grad()
            fabric.backward(loss_of(model, batch))
            fabric.clip_gradients(model, mine, max_norm=0.1)
            mine.step()

        twin = twin.double() if precision == "64-true" else twin
        other = sgd(twin)
        for x, y in loader():
            other.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                logits = twin(x.to(twin.head.weight.dtype))
            nn.functional.cross_entropy(logits.float(), y).backward()  # Fabric hands out float32
            nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
            step_by_hand_(twin, other, some_scalings(), apply)
        assert close_weights(model.module, twin, BFLOAT16_ALIKE if precision == "bf16-mixed" else STEPS_ALIKE)

    @pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed"])
    def test_measuring_in_every_precision(self, Fabric, precision):
        fabric = self.start(Fabric, precision)
        model, twin = net_and_twin()
        model, mine = fabric.setup(model, sgd(model))
        G = SpatialGradientScaling(model, mine).update(fabric.setup_dataloaders(loader()), batches=2)
        expected = SpatialGradientScaling(twin, sgd(twin)).update(loader(), batches=2)
        for name, value in G.items():
            torch.testing.assert_close(value, expected[name], atol=0.1, rtol=0, check_dtype=False)
        if precision == "32-true":
            assert all(torch.equal(value, expected[name]) for name, value in G.items())

    def test_measuring_leaves_the_loader_as_it_was(self, Fabric):
        fabric = self.start(Fabric)
        orders = []
        for measured in (False, True):
            torch.manual_seed(1)
            model = TinyNet()
            model, mine = fabric.setup(model, sgd(model))
            sgs = SpatialGradientScaling(model, mine)
            sampler = torch.utils.data.DistributedSampler(range(32), num_replicas=1, rank=0)
            data = DataLoader(dataset(), 8, sampler=sampler)
            data = fabric.setup_dataloaders(data, use_distributed_sampler=False)
            seen = []
            for _ in range(3):
                if measured:
                    sgs.update(data, batches=2)
                seen += [y.tolist() for _, y in data]
            orders.append(seen)
        assert orders[0] == orders[1]
        assert orders[0][:4] != orders[0][4:8]

    def test_checkpoints(self, Fabric, tmp_path):
        fabric = self.start(Fabric)

        def build():
            model = TinyNet()
            model, mine = fabric.setup(model, sgd(model))
            return {"model": model, "optimizer": mine, "sgs": SpatialGradientScaling(model, mine)}

        saved, fresh = build(), build()
        G = saved["sgs"].update(loader())
        fabric.save(tmp_path / "checkpoint.ckpt", saved)
        fabric.load(tmp_path / "checkpoint.ckpt", fresh)
        assert fresh["sgs"].num_updates == 1
        assert all(torch.equal(G[name], value) for name, value in fresh["sgs"].scalings.items())


class TestAccelerate:
    @pytest.mark.parametrize("apply", APPLY)
    @pytest.mark.parametrize("accelerator", [{"gradient_accumulation_steps": 2}], indirect=True)
    def test_training_with_gradient_accumulation(self, accelerator, apply):
        model, twin = net_and_twin()
        model, mine, data = accelerator.prepare(model, sgd(model), loader(number=40))
        static(model, mine, apply)
        for batch in data:  # five batches: the last one is a step of its own
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                mine.step()
                mine.zero_grad()

        other = sgd(twin)
        for number, batch in enumerate(loader(number=40), start=1):
            (loss_of(twin, batch) / 2).backward()
            if number % 2 == 0 or number == 5:
                nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
                step_by_hand_(twin, other, some_scalings(), apply)
                other.zero_grad()
        assert close_weights(accelerator.unwrap_model(model), twin)

    @pytest.mark.parametrize("accelerator", [{"mixed_precision": "bf16"}], indirect=True)
    def test_training_and_measuring_in_bfloat16(self, accelerator):
        model, twin = net_and_twin()
        model, mine, data = accelerator.prepare(model, sgd(model), loader())
        sgs = SpatialGradientScaling(model, mine)
        G = sgs.update(data, batches=2)
        other = sgd(twin)
        with torch.autocast("cpu", torch.bfloat16), SpatialGradientScaling(twin, other) as plain:
            expected = plain.update(loader(), batches=2)
        assert all(torch.equal(value, expected[name]) for name, value in G.items())
        for batch, plain_batch in zip(data, loader(), strict=True):
            accelerator.backward(loss_of(model, batch))
            mine.step()
            mine.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                logits = twin(plain_batch[0])
            nn.functional.cross_entropy(logits.float(), plain_batch[1]).backward()
            step_by_hand_(twin, other, G, "gradient")
            other.zero_grad()
        assert close_weights(accelerator.unwrap_model(model), twin, BFLOAT16_ALIKE)

    @pytest.mark.parametrize("take", [2, 4])  # a part of the loader, and all of it
    def test_measuring_leaves_the_loader_and_the_accelerator_as_they_were(self, accelerator, take):
        from accelerate.utils import DataLoaderConfiguration

        orders = []
        for measured in (False, True):
            accelerator.dataloader_config = DataLoaderConfiguration(use_seedable_sampler=True)
            torch.manual_seed(1)
            model = TinyNet()
            model, mine, data = accelerator.prepare(model, sgd(model), loader(shuffle=True))
            sgs = SpatialGradientScaling(model, mine)
            seen = []
            for _ in range(3):
                if measured:
                    sgs.update(data, batches=take)
                    assert not accelerator.gradient_state.in_dataloader
                seen += [y.tolist() for _, y in data]
            orders.append(seen)
        assert orders[0] == orders[1]
        assert orders[0][:4] != orders[0][4:8]

    def test_checkpoints(self, accelerator, tmp_path):
        model = TinyNet()
        model, mine, data = accelerator.prepare(model, sgd(model), loader())
        sgs = SpatialGradientScaling(model, mine)
        accelerator.register_for_checkpointing(sgs)
        G = sgs.update(data)
        accelerator.save_state(tmp_path)
        sgs.set_scalings({name: torch.ones_like(value) for name, value in G.items()})
        accelerator.load_state(tmp_path)
        assert all(torch.equal(G[name], value) for name, value in sgs.scalings.items())


class TestTimm:
    @pytest.mark.parametrize("apply", APPLY)
    def test_lookahead(self, timm, apply):
        model, twin = net_and_twin()
        mine = timm.optim.Lookahead(sgd(model), k=2)
        static(model, mine, apply)
        train_(model, mine, batches())

        other = sgd(twin)
        slow = None
        for step, batch in enumerate(batches(), start=1):
            train_by_hand_(twin, other, [batch], some_scalings(), apply)
            if step % 2 == 0:
                fast = [p.detach().clone() for p in twin.parameters()]
                slow = fast if slow is None else [s + 0.5 * (f - s) for s, f in zip(slow, fast, strict=True)]
                with torch.no_grad():
                    for parameter, value in zip(twin.parameters(), slow, strict=True):
                        parameter.copy_(value)
        assert close_weights(model, twin)

    @pytest.mark.parametrize("apply", APPLY)
    @pytest.mark.parametrize("name", ["lamb", "adamp", "lion", "nadamw"])
    def test_optimizers(self, timm, name, apply):
        model, twin = net_and_twin()
        mine, other = (timm.optim.create_optimizer_v2(net, name, lr=0.01, weight_decay=0.01) for net in (model, twin))
        static(model, mine, apply)
        train_(model, mine, batches())
        train_by_hand_(twin, other, batches(), some_scalings(), apply)
        assert close_weights(model, twin)

    def test_the_scaler_of_its_training_script(self, timm):
        model, twin = net_and_twin()
        mine, other = sgd(model), sgd(twin)
        static(model, mine)
        scaler = timm.utils.NativeScaler(device="cpu")
        for batch in batches():
            mine.zero_grad()
            scaler(loss_of(model, batch), mine, clip_grad=0.1, parameters=model.parameters())
            other.zero_grad()
            loss_of(twin, batch).backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
            step_by_hand_(twin, other, some_scalings(), "gradient")
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q)

    @pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext"])
    def test_models(self, timm, name):
        model = timm.create_model(name, num_classes=5)
        model.eval()  # no dropped paths, and statistics that do not depend on the batch
        twin = copy.deepcopy(model)
        mine, other = sgd(model), sgd(twin)
        sgs = SpatialGradientScaling(model, mine)
        expected = [
            (module_name, module)
            for module_name, module in twin.named_modules()
            if isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1
        ]
        G = sgs.update([images(4, size=64)])
        assert set(G) == {module_name for module_name, _ in expected}
        assert not any(torch.equal(value, torch.ones_like(value)) for value in G.values())
        for seed in range(2):
            batch = images(4, seed, size=64)
            train_(model, mine, [batch])
            train_by_hand_(twin, other, [batch], G)
        assert close_weights(model, twin)

    def test_static_scalings_reach_every_kernel_of_a_size(self, timm):
        model = timm.create_model("test_resnet")
        sgs = SpatialGradientScaling(model, sgd(model), measure=None, scalings=scaling_from_ratios(2, 3))
        changed = [name for name, G in sgs.scalings.items() if not torch.equal(G, torch.ones_like(G))]
        kernels = dict(model.named_modules())
        assert changed == [name for name in sgs.scalings if kernels[name].kernel_size == (3, 3)]
        assert changed
