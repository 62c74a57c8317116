"""Properties that ask for more than storing and delivering a message; plugins bring it."""

from __future__ import annotations

from rmqkit.errors import RequestRefused
from rmqkit.model.properties import DELAY, REPEAT, TIMER_INPUTS, TRANSACTION_PREPARED
from rmqkit.protocol.codes import ResponseCode

#: Property -> what it asks for.
CLAIMABLE: dict[str, str] = {
    TRANSACTION_PREPARED: "transactional messages",
    DELAY: "delay levels",
    **dict.fromkeys(TIMER_INPUTS, "delivery at a time of the sender's own"),
    REPEAT: "repeated delivery",
}


def unclaimed(name: str) -> RequestRefused:
    """The refusal of a message with such a property on a broker where no put hook claims it."""
    code = ResponseCode.NO_PERMISSION if name == TRANSACTION_PREPARED else ResponseCode.MESSAGE_ILLEGAL
    return RequestRefused(
        code,
        f"the property {name} asks for {CLAIMABLE[name]}, which no plugin of this broker brings: the message"
        " was not stored. `rmqkit plugins` lists its plugins, and those that are off",
    )
