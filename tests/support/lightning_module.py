"""A LightningModule around the tiny network; importing this loads Lightning."""

import importlib

import torch

from support.common import TinyNet, define_torchvision_operators, loss_of

define_torchvision_operators()
pl = importlib.import_module("lightning.pytorch")

# Lightning's own: advice, and a use of torch that torch has deprecated.
IGNORED_WARNINGS = (
    "ignore:.*does not have many workers",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:The dirpath has changed",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
)
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = TinyNet()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return loss_of(self, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
