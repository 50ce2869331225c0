"""A study's sections as Markdown and as one HTML page."""
