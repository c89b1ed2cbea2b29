"""Charts: one look for all of them, as PNG files and as SVG inside a page."""
