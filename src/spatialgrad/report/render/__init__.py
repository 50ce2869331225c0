"""Reports as Markdown and as one HTML page."""
