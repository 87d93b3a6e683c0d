"""Model definitions of the studies, from the papers that introduced them; weights are random."""
