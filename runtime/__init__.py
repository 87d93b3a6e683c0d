"""Replays a plan on a captured program, in training."""
