"""From model to step under a budget: predictions against measurements, bit by bit."""
