"""MONAI: a 3-D UNet under the SupervisedTrainer. Needs monai and pytorch-ignite."""

import torch
from monai.data import DataLoader, Dataset, create_test_image_3d
from monai.engines import SupervisedTrainer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureTyped, RandFlipd

from spatialgrad import Live, SpatialGradientScaling

volumes = [create_test_image_3d(32, 32, 32, rad_max=10, rad_min=4, num_seg_classes=1, channel_dim=0) for _ in range(16)]
files = [{"image": image, "label": label} for image, label in volumes]
transform = Compose([EnsureTyped(["image", "label"]), RandFlipd(["image", "label"], prob=0.5)])
loader = DataLoader(Dataset(files, transform), batch_size=2, shuffle=True)

model = UNet(spatial_dims=3, in_channels=1, out_channels=1, channels=(8, 16, 32), strides=(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# An epoch has 8 steps here; live=True is for trainings of hundreds of steps.
sgs = SpatialGradientScaling(model, optimizer, live=Live(at=(8,), every=40))
trainer = SupervisedTrainer(
    device=torch.device("cpu"),
    max_epochs=2,
    train_data_loader=loader,
    network=model,
    optimizer=optimizer,
    loss_function=DiceLoss(sigmoid=True),
)
trainer.run()
print(sgs)
