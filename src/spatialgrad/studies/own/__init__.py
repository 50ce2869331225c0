"""Studies of this package's own: what the paper does not ask, but its readers do."""
