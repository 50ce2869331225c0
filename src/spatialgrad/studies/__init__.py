"""The tables and figures of the paper, each as one command; see `spatialgrad study list`."""
