"""Every method on four steps: a chain, GPT-2, ResNet-50 and U-Net."""
