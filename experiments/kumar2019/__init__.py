"""Kumar et al., NeurIPS 2019: schedules from tree and path decompositions, trained with."""
