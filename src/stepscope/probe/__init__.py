"""What runs inside the child: patch points, clocks, the window, the data clock, the guard."""
