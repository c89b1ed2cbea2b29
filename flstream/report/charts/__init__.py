"""Charts in one common style, as files and as SVG inside a page."""
