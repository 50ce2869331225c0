"""Plumbing around torch that knows nothing of the method."""
