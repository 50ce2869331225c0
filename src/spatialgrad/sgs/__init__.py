"""Spatial gradient scaling: the method itself."""
