"""Studies: a question about one model that takes several measurements to answer."""
