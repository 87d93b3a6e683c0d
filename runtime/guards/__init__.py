"""What a step is compared with before it runs: its call, its modules, and all that it reads."""
