"""What replaying costs when nothing is recomputed."""
