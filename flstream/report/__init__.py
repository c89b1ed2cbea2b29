"""What a run tells people: the live view, the final tables, a checkpoint's list of tensors."""
