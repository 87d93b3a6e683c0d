"""The results tables of the README, from the JSON files of the studies."""
