"""What a checkpoint holds, range by range: statistics, differences and soundness of any size."""
