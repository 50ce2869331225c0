"""Spatial gradient scaling under the Hugging Face Trainer: one callback.

Run with: python examples/transformers_trainer.py (needs spatialgrad[transformers])
"""

import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from spatialgrad.data import MemorySplit, load_dataset
from spatialgrad.integrations.transformers import SpatialGradientScalingCallback


class Images(Dataset):
    """A split as the dictionaries that the Trainer collates."""

    def __init__(self, split: MemorySplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.split.images[index] / 255, "labels": self.split.labels[index]}


class Classifier(nn.Module):
    """A small ConvNet with the interface that the Trainer expects."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 3 * 3, num_classes)),
        )

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The logits, and the loss if there are labels."""
        logits = self.net(pixel_values)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    torch.manual_seed(0)
    data = load_dataset("fashion-mnist-mini")
    model = Classifier(data.num_classes)
    callback = SpatialGradientScalingCallback(live=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=2,
                per_device_train_batch_size=50,
                per_device_eval_batch_size=500,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=Images(data.train),
            eval_dataset=Images(data.test),
            compute_metrics=lambda result: {"accuracy": (result.predictions.argmax(1) == result.label_ids).mean()},
            optimizers=(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), None),
            callbacks=[callback],
        )
        trainer.train()
        result = trainer.evaluate()
    print(callback.scaling)
    print(f"test accuracy: {result['eval_accuracy']:.1%}")


if __name__ == "__main__":
    main()
