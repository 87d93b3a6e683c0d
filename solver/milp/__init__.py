"""The staged integer program: one matrix builder over any cut into stages, and its backends."""
