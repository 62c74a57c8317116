"""The LMDB environment: layout, opening, writing and deleting."""
