"""``report.html``: a run directory as one self-contained page."""
