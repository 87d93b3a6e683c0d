"""Where lowtide goes into a training program: a plain loop, Hugging Face, Lightning."""
