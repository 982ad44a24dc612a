"""What another package adds to stepscope, each in a module of its own."""
