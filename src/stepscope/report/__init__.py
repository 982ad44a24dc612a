"""Reports: `story` decides what is said, `render` draws it in each format."""
