"""What the parts of one run of the service share."""

from __future__ import annotations

from attrs import field, frozen

from rmqkit.plugin.broker import Broker
from rmqkit_timer.deletions import Deletions
from rmqkit_timer.figures import Figures
from rmqkit_timer.opening import Kept, Opened
from rmqkit_timer.repeating import Repeating
from rmqkit_timer.repeats import Repeats
from rmqkit_timer.settings import TimerSettings
from rmqkit_timer.timers import Timers


@frozen
class Session:
    """One run on a master. `opened` is what `kept` had, whose timers go on."""

    broker: Broker
    kept: Kept
    opened: Opened
    repeats: Repeats
    repeating: Repeating
    figures: Figures
    deletions: Deletions = field(factory=Deletions)

    @property
    def settings(self) -> TimerSettings:
        """The present ones."""
        return self.broker.config.owned(TimerSettings)

    @property
    def timers(self) -> Timers:
        return self.opened.timers
