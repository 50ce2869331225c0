"""The config of a training: groups of fields, their checks, and JSON."""
