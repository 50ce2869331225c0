"""The command ``spatialgrad``."""
