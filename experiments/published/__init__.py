"""Ours beside the published figures, on the instances that their authors made public."""
