"""segmentation_models_pytorch: a Unet in a Lightning module, as in its examples. Needs lightning."""

import lightning.pytorch as pl
import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import Live
from spatialgrad.data import load_dataset
from spatialgrad.integrations.lightning import SpatialGradientScalingCallback


class Segmenter(pl.LightningModule):
    """A Unet that separates clothes from the background."""

    def __init__(self):
        super().__init__()
        self.model = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=1)
        self.loss = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)

    def training_step(self, batch, index):
        """Return the loss of a batch."""
        image, mask = batch
        return self.loss(self.model(image), mask)

    def configure_optimizers(self):
        """Return the optimizer of smp's examples."""
        return torch.optim.Adam(self.parameters(), lr=2e-4)


images = torch.nn.functional.pad(load_dataset("fashion-mnist-mini").train.images[:96] / 255, (2, 2, 2, 2))
loader = DataLoader(TensorDataset(images, (images > 0).float()), batch_size=8, shuffle=True)
# An epoch has 12 steps here; live=True is for trainings of hundreds of steps.
callback = SpatialGradientScalingCallback(live=Live(at=(4,), every=40))
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False)
trainer.fit(Segmenter(), loader)
sgs = callback.scaling
print(sgs)
