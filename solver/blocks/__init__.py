"""Repeated blocks: found from the graph alone, solved once each, composed by dynamic programming."""
