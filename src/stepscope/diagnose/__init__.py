"""From an analysis to ranked findings: rules by theme, merged, ranked, with predicted gains."""
