"""A run on disk, and what it prints."""
