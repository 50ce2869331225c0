"""Torch plumbing that knows nothing of the method.

- `modules`: look through wrappers, run a model without side effects
- `loaders`: read the same few batches repeatedly, move and identify batches
- `optimizers`: look through wrappers, act on gradients before a step
- `optimizer_trial`: find out how an optimizer treats gradients
- `distributed`: the collectives that the package uses
- `text`: names that may be misspelt, counts, modules of the user's
- `extras`: how to install an optional part
- `lazy`: packages whose names are imported on first use
- `flops`: parameters and multiply-accumulates of a network
"""
