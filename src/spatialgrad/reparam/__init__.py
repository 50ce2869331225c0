"""Structural reparameterization: train with branches, deploy plain convolutions.

`reparameterize_(model, DBB())` before training, `merge(model)` after it.
"""

from spatialgrad.reparam.acb import ACB
from spatialgrad.reparam.block import BranchedConv2d, Method, UnsupportedLayerError
from spatialgrad.reparam.branches import Branches, equivalent_scaling
from spatialgrad.reparam.convert import reparameterize_
from spatialgrad.reparam.count import Count, count
from spatialgrad.reparam.dbb import DBB
from spatialgrad.reparam.dyrep import Adjustment, DyRep, DyRepConfig
from spatialgrad.reparam.merge import Difference, Merged, MergeError, MergeReport, merge, merge_with_report
from spatialgrad.reparam.repvgg import RepVGG
from spatialgrad.reparam.surgery import named_blocks

__all__ = [
    "ACB",
    "DBB",
    "Adjustment",
    "BranchedConv2d",
    "Branches",
    "Count",
    "Difference",
    "DyRep",
    "DyRepConfig",
    "MergeError",
    "MergeReport",
    "Merged",
    "Method",
    "RepVGG",
    "UnsupportedLayerError",
    "count",
    "equivalent_scaling",
    "merge",
    "merge_with_report",
    "named_blocks",
    "reparameterize_",
]
