"""Parts of the page of a run (scripts/report.py): what happened to it, and what its model says."""
