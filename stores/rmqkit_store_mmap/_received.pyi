from rmqkit_store_mmap.received import pure_good_end as good_end
from rmqkit_store_mmap.received import pure_plain_units as plain_units
from rmqkit_store_mmap.received import pure_sound_end as sound_end

__all__ = ["good_end", "plain_units", "sound_end"]
