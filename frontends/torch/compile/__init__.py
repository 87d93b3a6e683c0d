"""Joint graphs of torch.compile as graphs for the solver."""
