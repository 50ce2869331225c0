"""Everything that decides about a training."""
