from rmqkit_store_mmap.unit_scan import NewScan
from rmqkit_store_mmap.unit_scan import pure_merged as merged

__all__ = ["UnitScan", "merged"]

UnitScan: NewScan
