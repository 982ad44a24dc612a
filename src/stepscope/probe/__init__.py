"""What lives inside the child: patch points, step and phase clocks, the window."""
