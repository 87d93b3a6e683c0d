"""What makes graphs: PyTorch models, and generated families."""
