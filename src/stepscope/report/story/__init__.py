"""What a report says, apart from how it is drawn: sections of blocks, the same for every format."""
