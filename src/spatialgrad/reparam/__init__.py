"""Structural reparameterization: train with branches, deploy plain convolutions.

Call `reparameterize_(model, DBB())` before training and `merge(model)` after it.
"""

from typing import TYPE_CHECKING

from spatialgrad.utils.lazy import import_on_use

if TYPE_CHECKING:
    from spatialgrad.reparam.block import BranchedConv2d, Reparameterization, UnsupportedLayerError, named_blocks
    from spatialgrad.reparam.convert import reparameterize_
    from spatialgrad.reparam.dyrep.config import DyRepConfig
    from spatialgrad.reparam.dyrep.controller import Adjustment, DyRep
    from spatialgrad.reparam.masked import Branches, equivalent_scaling
    from spatialgrad.reparam.merging import Difference, Merged, MergeError, MergeReport, merge, merge_with_report
    from spatialgrad.reparam.methods import ACB, DBB, QARepVGG, RepVGG
    from spatialgrad.reparam.repopt.block import LayerScales, RepOpt
    from spatialgrad.reparam.repopt.explain import ScalesSummary, explain_scales
    from spatialgrad.reparam.repopt.scales import repopt_init_, repopt_multipliers, searched_scales
    from spatialgrad.reparam.repopt.scaling import RepOptScaling
    from spatialgrad.utils.flops import Count, count

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
    "LayerScales",
    "MergeError",
    "MergeReport",
    "Merged",
    "QARepVGG",
    "RepOpt",
    "RepOptScaling",
    "RepVGG",
    "Reparameterization",
    "ScalesSummary",
    "UnsupportedLayerError",
    "count",
    "equivalent_scaling",
    "explain_scales",
    "merge",
    "merge_with_report",
    "named_blocks",
    "reparameterize_",
    "repopt_init_",
    "repopt_multipliers",
    "searched_scales",
]

__getattr__, __dir__ = import_on_use(__name__)
