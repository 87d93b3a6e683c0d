"""Pictures of plans and comparisons, and the report as one HTML file."""
