"""What a step depends on beside its inputs: how its modules behave, and what it reads elsewhere."""
