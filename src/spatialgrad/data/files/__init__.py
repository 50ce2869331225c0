"""File formats, archives and downloads."""
