"""One step while it runs: generated code inside autograd, random state, gradients, buffers."""
