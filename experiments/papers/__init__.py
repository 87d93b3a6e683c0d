"""What the studies of published experiments share: rows, results file, table, picture."""
