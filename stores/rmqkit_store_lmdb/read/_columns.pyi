from rmqkit_store_lmdb.read.columns import pure_copied_records as copied_records
from rmqkit_store_lmdb.read.columns import pure_key_numbers as key_numbers
from rmqkit_store_lmdb.read.columns import pure_offsets_of as offsets_of
from rmqkit_store_lmdb.read.columns import pure_timed_units as timed_units

__all__ = ["copied_records", "key_numbers", "offsets_of", "timed_units"]
