"""Opening a store: recovery, checkpoint, abort file; trimming and work in the background."""
