"""What integer programming gains over greedy, per model and budget."""
