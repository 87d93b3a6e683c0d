"""Repeated blocks: found from the graph alone, solved once each, composed as a chain."""
