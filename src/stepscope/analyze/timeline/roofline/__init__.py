"""How close operators come to the device's ceilings: their FLOPs and bytes against its rates."""
