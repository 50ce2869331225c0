"""mmengine: a hook of the Runner. Needs mmengine."""

import tempfile

from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.data import load_dataset


class Classifier(BaseModel):
    """A small ConvNet with the interface of mmengine."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(16, 32, 3), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def forward(self, images, labels, mode="tensor"):
        """Return the losses or the logits."""
        logits = self.net(images)
        return {"loss": F.cross_entropy(logits, labels)} if mode == "loss" else logits


class SpatialGradientScalingHook(Hook):
    """Scales the gradients of a Runner's model."""

    def before_train(self, runner):
        """Attach the scaling once model and optimizer are there."""
        # An epoch has 10 steps here; live=True is for trainings of hundreds of steps.
        self.sgs = SpatialGradientScaling(runner.model, runner.optim_wrapper, live=Live(at=(2,), every=40))


data = load_dataset("fashion-mnist-mini").train
loader = DataLoader(TensorDataset(data.images[:320] / 255, data.labels[:320]), batch_size=32, shuffle=True)
hook = SpatialGradientScalingHook()
with tempfile.TemporaryDirectory() as folder:
    runner = Runner(
        model=Classifier(),
        work_dir=folder,
        train_dataloader=loader,
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
        train_cfg={"by_epoch": True, "max_epochs": 2},
        custom_hooks=[hook],
    )
    runner.train()
sgs = hook.sgs
print(sgs)
