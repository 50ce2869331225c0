"""Data sets by name: `load_dataset("fashion-mnist-mini")`."""

from spatialgrad.data.dataset import ImageDataset, MemorySplit, Split
from spatialgrad.data.errors import CorruptDataError, DataError, MissingDataError
from spatialgrad.data.registry import data_root, load_dataset

__all__ = [
    "CorruptDataError",
    "DataError",
    "ImageDataset",
    "MemorySplit",
    "MissingDataError",
    "Split",
    "data_root",
    "load_dataset",
]
