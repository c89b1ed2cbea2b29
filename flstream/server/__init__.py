"""The server of a run: tasks for workers, collected answers, folds, models and the journal."""
