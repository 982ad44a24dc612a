"""Reports: `story` decides what to say, `render` draws it in each format."""
