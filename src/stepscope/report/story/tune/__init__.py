"""The story of a tune."""
