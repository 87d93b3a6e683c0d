"""Writes the Python that runs a schedule: straight-line functions for forward and backward."""
