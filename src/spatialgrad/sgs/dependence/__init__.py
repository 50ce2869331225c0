"""Measures of spatial dependence: pure functions on maps, and the streaming estimators beneath them."""

from spatialgrad.sgs.dependence.autocorrelation import Autocorrelation, autocorrelation
from spatialgrad.sgs.dependence.estimator import Estimator, FunctionEstimator
from spatialgrad.sgs.dependence.mutual_information import MutualInformation, normalized_mutual_information
from spatialgrad.sgs.dependence.window import Window

__all__ = [
    "Autocorrelation",
    "Estimator",
    "FunctionEstimator",
    "MutualInformation",
    "Window",
    "autocorrelation",
    "normalized_mutual_information",
]
