"""Measures of spatial dependence S: pure functions of maps, and their streaming estimators.

- `mutual_information`: normalized mutual information, the paper's measure, from joint histograms
- `distant_pairs`: the same for `drop_near`, the paper's ImageNet variant
- `autocorrelation`: linear correlation, the paper's ablation
- `estimator`: the protocol of all streaming estimators, and one that wraps a user's function
- `window`: the geometry of a kernel: displacements, padding, layout
- `histogram`: quantization, joint counts and their mutual information
- `histogram_numba`: the compiled version of counting, for the extra ``[fast]``
"""
