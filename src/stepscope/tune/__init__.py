"""Find fixes that make a program faster, prove that it trains the same, write the patch."""
