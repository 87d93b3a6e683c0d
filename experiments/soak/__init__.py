"""Many steps under a tight budget, resumed in the middle: plain losses, flat memory."""
