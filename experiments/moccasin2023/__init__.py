"""Moccasin, ICML 2023: its graphs and budgets, with every method in one table."""
