"""Running a plan: on this machine, on a Ray cluster, and searches."""
