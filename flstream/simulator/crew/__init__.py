"""The crew: worker processes, who they work for, and what becomes of those that die."""
