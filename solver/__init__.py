"""Graphs in, plans out: the accounting, the formulation, the search and the baselines."""
