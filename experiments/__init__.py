"""Studies: one folder each, with the command that makes its table."""
