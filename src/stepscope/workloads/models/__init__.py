"""The built-in models, and how any model is built."""
