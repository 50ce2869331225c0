"""Measures of spatial dependence: pure functions on maps, and the streaming estimators beneath them."""

from spatialgrad.dependence.autocorrelation import Autocorrelation, autocorrelation
from spatialgrad.dependence.estimator import Estimator, FunctionEstimator
from spatialgrad.dependence.mutual_information import MutualInformation, normalized_mutual_information
from spatialgrad.dependence.window import Window

__all__ = [
    "Autocorrelation",
    "Estimator",
    "FunctionEstimator",
    "MutualInformation",
    "Window",
    "autocorrelation",
    "normalized_mutual_information",
]
