"""Capture and profile a PyTorch training step."""
