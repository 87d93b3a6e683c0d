"""Published heuristics, one file each, as schedules of any graph."""
