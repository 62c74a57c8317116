from collections.abc import Callable, Sequence

from rmqkit.plugin.hooks import SendRun
from rmqkit.plugin.request import Answer

class SuccessForm:
    def __init__(self, id_head: str, pieces: Sequence[bytes]) -> None: ...
    def fill(self, sends: SendRun, other: Callable[[int], Answer]) -> list[Answer]: ...
