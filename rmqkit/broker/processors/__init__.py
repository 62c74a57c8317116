"""The requests every broker answers, a module per Java processor."""
