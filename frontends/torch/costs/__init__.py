"""What the ops of a step cost in time and bytes: run and metered, kept on disk, or modelled."""
