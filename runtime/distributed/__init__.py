"""Several processes: agreement on one plan, and parameters that are sharded between them."""
