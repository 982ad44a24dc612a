"""The schemas everything else speaks. Imports neither torch nor any other layer."""
