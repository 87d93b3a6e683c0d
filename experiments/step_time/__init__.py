"""Step time and peak against what PyTorch offers: checkpoints and the activation memory budget."""
