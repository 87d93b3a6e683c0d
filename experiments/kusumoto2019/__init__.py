"""Kusumoto et al., NeurIPS 2019: the smallest memory of common networks."""
