"""What this machine is: devices, topology, measured ceilings, noise."""
