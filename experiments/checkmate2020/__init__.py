"""Checkmate, MLSys 2020: overhead curves, ratios to the optimum, largest batches."""
