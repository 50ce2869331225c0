"""Spatial gradient scaling for any PyTorch ConvNet."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spatialgrad.sgs.dependence.autocorrelation import autocorrelation
    from spatialgrad.sgs.dependence.mutual_information import normalized_mutual_information
    from spatialgrad.sgs.live import Live
    from spatialgrad.sgs.matrices import (
        Explanation,
        explain,
        scaling_from_dependence,
        scaling_from_masks,
        scaling_from_ratios,
    )
    from spatialgrad.sgs.scaler import SpatialGradientScaling
    from spatialgrad.sgs.step_hook import NoEffectWarning, scale_gradients_

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
    "scale_gradients_",
    "scaling_from_dependence",
    "scaling_from_masks",
    "scaling_from_ratios",
]

_MODULES = {
    "Explanation": "matrices",
    "Live": "live",
    "NoEffectWarning": "step_hook",
    "SpatialGradientScaling": "scaler",
    "autocorrelation": "dependence.autocorrelation",
    "explain": "matrices",
    "normalized_mutual_information": "dependence.mutual_information",
    "scale_gradients_": "step_hook",
    "scaling_from_dependence": "matrices",
    "scaling_from_masks": "matrices",
    "scaling_from_ratios": "matrices",
}


def __getattr__(name: str) -> Any:
    # On first use: PyTorch takes seconds to import, and `spatialgrad --help` does not need it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.sgs.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
