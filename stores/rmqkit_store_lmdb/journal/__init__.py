"""The journal: appended data that is not yet in LMDB, or not yet on the device."""
