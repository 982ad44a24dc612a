"""What several fixes ask of a running program: its code, datasets, loaders, models, tensors."""
