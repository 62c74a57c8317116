"""Producers: sends, their attempts, batches and results."""
