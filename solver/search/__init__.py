"""Incumbents: local search over schedules with a compiled evaluator."""
