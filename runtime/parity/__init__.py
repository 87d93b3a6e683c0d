"""Replayed training against plain training: every bit, the peak and the time."""
