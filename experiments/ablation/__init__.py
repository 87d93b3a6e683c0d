"""What each technique of `auto` is worth: the same rows with one of them left out."""
