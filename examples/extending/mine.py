"""Parts of one's own for spatialgrad, as docs/extending.md explains them; run the commands there in this folder."""

from dataclasses import replace

import torch
from torch.optim import Optimizer

from spatialgrad import autocorrelation
from spatialgrad.data import ImageDataset, MemorySplit
from spatialgrad.reparam import ACB
from spatialgrad.studies import Arm, Study
from spatialgrad.train import Method, recipe
from spatialgrad.train.config import MethodConfig


def stripes():
    """A data set: horizontal against vertical stripes."""
    generator = torch.Generator().manual_seed(0)

    def split(number):
        labels = torch.arange(number) % 2
        rows = torch.randint(256, (number, 1, 32, 1), generator=generator, dtype=torch.uint8).expand(-1, -1, -1, 32)
        vertical = labels.bool().view(-1, 1, 1, 1)
        return MemorySplit(torch.where(vertical, rows.transpose(2, 3), rows), labels)

    return ImageDataset(
        name="stripes",
        description="stripes",
        train=split(1024),
        test=split(256),
        class_names=("horizontal", "vertical"),
        mean=(0.5,),
        std=(0.29,),
        image_size=32,
    )


def squared_correlation(maps, kernel_size, **window):
    """A measure of dependence: (channels, *kernel_size) from (images, channels, *size), 1 at the centre."""
    return autocorrelation(maps, kernel_size, **window) ** 2


class WideACB(ACB):
    """A branched block: ACB with a 1×1 branch."""

    name = "wide ACB"

    @property
    def names(self):
        """Names of the branches."""
        return (*super().names, "1x1")


class SignSGD(Optimizer):
    """An optimizer: steps of the same size in every weight."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        """Step by the sign of each gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(group["lr"] * weight.grad.sign())
        return loss


class GradientNoise(Method):
    """A training method: noise on the gradients, which falls from epoch to epoch."""

    def attach(self, model, optimizer):
        """Remember whose gradients they are."""
        self.weights, self.level = list(model.parameters()), 0.0

    def before_epoch(self, context):
        """Lower the noise."""
        self.level = 0.01 / (1 + context.epoch)
        return super().before_epoch(context)

    def before_step(self, step):
        """Add the noise."""
        for weight in self.weights:
            weight.grad.add_(self.level * torch.randn_like(weight))


def arms(scale):
    """Plain training and the method above, on the data set above."""
    config = recipe("pocket")
    config = replace(config, data=replace(config.data, name="mine:stripes", limit=None, test_limit=None))
    ways = {"plain": "baseline", "SGS": "sgs", "noise": "mine:GradientNoise"}
    return tuple(
        Arm(
            group={"Dataset": "stripes"},
            label=label,
            config=replace(config, method=MethodConfig(name=method)),
            reference=label == "plain",
        )
        for label, method in ways.items()
    )


NOISE = Study(
    name="noise",
    title="Noise on gradients",
    shows="my own",
    question="Does noise on the gradients help?",
    arms=arms,
    num_seeds={"paper": 5, "desk": 3, "pocket": 2},
    differences=dict.fromkeys(("paper", "desk", "pocket"), "Stripes, a narrow VGG-11."),
    times=dict.fromkeys(("paper", "desk", "pocket"), "2 minutes on 2 cores"),
)
