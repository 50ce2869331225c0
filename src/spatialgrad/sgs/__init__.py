"""Spatial gradient scaling, the method itself.

- `scaler`: `SpatialGradientScaling`, the class that holds everything together; its head shows the way of the data
- `settings`: what users set: how S is measured, and when (`Live`)
- `selection`: which convolutions take part, and why the others do not
- `layers`: those that do, and the G of each
- `step_hook`: multiply gradients or updates by G whenever the optimizer steps
- `apply_mode`: whether an optimizer needs G on the gradient or on the update
- `measure`: observe the inputs of convolutions, and turn them into G
- `live`: measure the training's own forward passes
- `no_effect`: notice scaling that has no effect
- `scaling`: G from a dependence S, from ratios, and from the masks of branches
- `explain`: back from G to branches
- `show`: tables and numbers to look at
- `dependence`: the measures of S (`mutual_information`, its ImageNet variant `distant_pairs`, `autocorrelation`), which
  share streaming (`estimator`), geometry (`window`) and counting (`histogram`, compiled in `histogram_numba`)
"""
