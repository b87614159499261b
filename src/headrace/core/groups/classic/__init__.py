"""Groups whose members assign partitions among themselves: the classic protocol."""
