"""MONeT, ICLR 2021: its training graphs and budgets, with every method in one table."""
