"""Models of Hugging Face transformers: which are captured and exact, and which are refused."""
