"""The demonstration: two models on real data, several budgets, every method, measured."""
