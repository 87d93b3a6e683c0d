"""Bytes and times as the device gives them, and whole steps timed under a few plans."""
