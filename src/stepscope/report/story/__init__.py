"""What a report says, independent of how it is drawn: sections of blocks, the same for every
format."""
