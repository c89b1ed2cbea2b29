"""What a workflow runs on: tasks given to workers, results collected, updates folded."""
