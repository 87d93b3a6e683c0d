"""How good plans are, and how fast they come: a 12-layer GPT-2."""
