"""Spatial gradient scaling for any PyTorch ConvNet."""

from typing import TYPE_CHECKING

from spatialgrad.utils.lazy import import_on_use

if TYPE_CHECKING:
    from spatialgrad.plot import plot_scalings
    from spatialgrad.sgs.dependence.autocorrelation import autocorrelation
    from spatialgrad.sgs.dependence.mutual_information import normalized_mutual_information
    from spatialgrad.sgs.explain import Explanation, explain
    from spatialgrad.sgs.no_effect import NoEffectWarning
    from spatialgrad.sgs.scaler import SpatialGradientScaling
    from spatialgrad.sgs.scaling import scaling_from_dependence, scaling_from_masks, scaling_from_ratios
    from spatialgrad.sgs.settings import Live
    from spatialgrad.sgs.step_hook import scale_gradients_

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "Live",
    "NoEffectWarning",
    "SpatialGradientScaling",
    "__version__",
    "autocorrelation",
    "explain",
    "normalized_mutual_information",
    "plot_scalings",
    "scale_gradients_",
    "scaling_from_dependence",
    "scaling_from_masks",
    "scaling_from_ratios",
]

__getattr__, __dir__ = import_on_use(__name__)
