"""Optimal rematerialization schedules for PyTorch training under a memory budget."""
