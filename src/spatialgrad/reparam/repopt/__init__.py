"""RepOptimizer: the branched block whose training a plain convolution with multiplied gradients repeats.

Ding, Chen, Zhang, Huang, Han & Ding, "Re-parameterizing Your Optimizers rather than Architectures", ICLR 2023.

- `block`: the block with one scale per output channel and branch, searched or constant
- `scales`: what a search found, the multipliers that follow from it, and the weights to start from
- `scaling`: the multipliers on an optimizer's step
- `explain`: what a search has found, in a few numbers per layer
"""
