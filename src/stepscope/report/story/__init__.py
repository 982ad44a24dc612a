"""What a report says, apart from how it is shown: sections of blocks, the same for every format."""
