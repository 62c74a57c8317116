"""Topics, groups and consumer offsets of a broker, in memory and on disk."""
