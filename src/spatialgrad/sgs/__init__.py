"""Spatial gradient scaling, the method itself.

- `scaler`: `SpatialGradientScaling`, the class that holds everything together
- `matrices`: scalings G from a dependence S, from ratios and from branch masks, and back to branches
- `layers`: which convolutions take part, and how their inputs are observed
- `settings`: which settings are valid, and which must be the same on all processes
- `measurement`: the estimators of all convolutions, in step on all processes
- `measure`: run a model over a few batches and measure S for each convolution
- `live`: measure the training's own forward passes instead; `passes` says which these are
- `outcome`: from every layer's S to its G, and `reports` of what has no effect
- `filters`: the current scalings, in the memory layout of the weights
- `functional`: kernels with which a model convolves by itself
- `newcomers`: convolutions that can be trained only later
- `attachment`: which optimizers scale which convolutions
- `apply`: where G can be applied
- `place`: whether an optimizer needs G on the gradient or on the update
- `step_hook`: multiply gradients or updates by G whenever the optimizer steps
- `dependence`: the measures of spatial dependence
"""
