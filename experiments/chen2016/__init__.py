"""Chen et al. 2016: memory and time against depth and sequence length."""
