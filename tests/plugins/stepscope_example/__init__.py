"""A package that extends stepscope, as any other package could."""
