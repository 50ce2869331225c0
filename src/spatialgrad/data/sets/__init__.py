"""One data set per file."""
