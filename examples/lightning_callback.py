"""Spatial gradient scaling under Lightning: one callback.

Run with: python examples/lightning_callback.py (needs spatialgrad[lightning])
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad.data import load_dataset
from spatialgrad.integrations.lightning import SpatialGradientScalingCallback


class Classifier(pl.LightningModule):
    """A small ConvNet and how it learns; nothing in it knows about scaling."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 3 * 3, num_classes)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the accuracy on a batch."""
        self.log("test accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main() -> None:
    pl.seed_everything(0)
    data = load_dataset("fashion-mnist-mini")
    train, test = (TensorDataset(split.images / 255, split.labels) for split in (data.train, data.test))

    callback = SpatialGradientScalingCallback(live=True)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Classifier(data.num_classes)
    trainer.fit(model, DataLoader(train, batch_size=50, shuffle=True))
    (result,) = trainer.test(model, DataLoader(test, batch_size=500), verbose=False)
    print(callback.scaling)
    print(f"test accuracy: {result['test accuracy']:.1%}")


if __name__ == "__main__":
    main()
