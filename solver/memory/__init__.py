"""Addresses: where each tensor of a schedule lies in one buffer, decided before the step runs."""
