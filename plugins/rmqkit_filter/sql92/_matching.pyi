from collections.abc import Callable, Sequence

from rmqkit.model.buffer import Buffer
from rmqkit_filter.sql92.expressions import Form

class Matching:
    def __init__(self, form: Form, otherwise: Callable[[Buffer], bool]) -> None: ...
    def verdicts(self, records: Sequence[Buffer]) -> list[bool]: ...
