"""Data sets by name, and their batches.

dataset = load_dataset("cifar100")
for images, labels in train_batches(dataset, 128, seed=0, epoch=0, augmentation=dataset.augmentation):
    ...
"""

from typing import TYPE_CHECKING

from spatialgrad.utils.lazy import import_on_use

if TYPE_CHECKING:
    from spatialgrad.data.augment import Augmentation
    from spatialgrad.data.batches import Batches, Loader, eval_batches, steps_per_epoch, train_batches
    from spatialgrad.data.classification import ImageDataset
    from spatialgrad.data.errors import CorruptDataError, DataError, MissingDataError, UnreachableError
    from spatialgrad.data.fingerprints import fingerprint
    from spatialgrad.data.pose import People, PoseDataset
    from spatialgrad.data.registry import (
        DatasetInfo,
        data_root,
        get_dataset_files,
        list_datasets,
        load_dataset,
        load_for,
    )
    from spatialgrad.data.segmentation import SegmentationDataset
    from spatialgrad.data.splits import FileSplit, MemorySplit, stratified_indices, validation_split

__all__ = [
    "Augmentation",
    "Batches",
    "CorruptDataError",
    "DataError",
    "DatasetInfo",
    "FileSplit",
    "ImageDataset",
    "Loader",
    "MemorySplit",
    "MissingDataError",
    "People",
    "PoseDataset",
    "SegmentationDataset",
    "UnreachableError",
    "data_root",
    "eval_batches",
    "fingerprint",
    "get_dataset_files",
    "list_datasets",
    "load_dataset",
    "load_for",
    "steps_per_epoch",
    "stratified_indices",
    "train_batches",
    "validation_split",
]

__getattr__, __dir__ = import_on_use(__name__)
