"""Spatial gradient scaling for any PyTorch ConvNet."""

__version__ = "0.1.0"
