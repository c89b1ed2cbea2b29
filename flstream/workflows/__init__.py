"""Workflows: what a job does round by round, in terms of what a federation can do."""
