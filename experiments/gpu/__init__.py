"""What must be seen on a real GPU, in eight minutes: bits, peaks and times."""
