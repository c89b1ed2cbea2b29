"""``report.html``: what a run directory tells, as one page that needs nothing else."""
