"""Reading of topics from the files of a store directory, without a broker."""
