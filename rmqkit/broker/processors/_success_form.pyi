from collections.abc import Callable, Sequence

from rmqkit.plugin.hooks import SendRun
from rmqkit.plugin.request import Answer
from rmqkit.plugin.store import Appended

class SuccessForm:
    def __init__(self, id_head: str, pieces: Sequence[bytes]) -> None: ...
    def fill(self, sends: SendRun, other: Callable[[int], Answer]) -> list[Answer]: ...
    def parked(self, opaque: int, at: Appended, queue_id: int, key: str, handle: str | None) -> bytes: ...
