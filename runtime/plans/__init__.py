"""Plans for every kind of call: made on first sight, kept in memory and on disk."""
