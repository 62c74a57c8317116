"""Tables of the options for reading and writing."""
