"""The requests that every broker answers, one module per Java processor."""
