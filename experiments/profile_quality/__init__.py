"""How good the profile of a step is: predicted against measured time and peak."""
