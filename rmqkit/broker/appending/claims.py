"""Properties that require more than storing and delivering a message; each belongs to one plugin."""

from __future__ import annotations

from rmqkit.errors import RequestRefused
from rmqkit.model.properties import DELAY, TIMER_INPUTS, TRANSACTION_PREPARED
from rmqkit.protocol.codes import ResponseCode

#: Property -> its effect, and the plugin that implements it.
CLAIMABLE: dict[str, tuple[str, str]] = {
    TRANSACTION_PREPARED: ("transactional messages", "transaction"),
    DELAY: ("delay levels", "delay"),
    **dict.fromkeys(TIMER_INPUTS, ("delivery at a time of the sender's own", "timer")),
}


def unclaimed(name: str) -> RequestRefused:
    """The refusal of a message with such a property on a broker where no put hook claims it."""
    feature, plugin = CLAIMABLE[name]
    code = ResponseCode.NO_PERMISSION if name == TRANSACTION_PREPARED else ResponseCode.MESSAGE_ILLEGAL
    return RequestRefused(
        code,
        f"the property {name} asks for {feature}, which this broker does not have (plugin {plugin}):"
        " the message was not stored",
    )
