from collections.abc import Callable, Sequence

from rmqkit.speedups._sends import Places, PutColumns

def json_lines(
    columns: PutColumns,
    places: Places,
    heads: Sequence[bytes],
    stops: Sequence[int],
    topic: str,
    max_key_bytes: int,
    other: Callable[[int], bytes],
) -> list[bytes]: ...
