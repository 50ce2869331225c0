"""Measures of spatial dependence S: pure functions of maps, and their streaming estimators.

- `mutual_information`: normalized mutual information, the paper's measure, from joint histograms
- `autocorrelation`: linear correlation, the paper's ablation
- `estimator`: the protocol of all streaming estimators, and one that wraps a user's function
- `window`: the geometry of a kernel: displacements, padding, layout
- `histogram`: quantization and joint counts; `histogram_numba` is the compiled version of the extra ``[fast]``
"""
