"""Plans under torch.compile."""
