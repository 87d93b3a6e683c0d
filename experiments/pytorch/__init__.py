"""Plans under torch.compile against PyTorch's own activation memory budget."""
