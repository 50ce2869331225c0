"""Measures of spatial dependence S: pure functions of maps, and their streaming estimators."""
