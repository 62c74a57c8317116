"""The protocol that plugins see of a broker matches the broker."""

from __future__ import annotations

from attrs import fields_dict

from rmqkit.broker.run.context import BrokerContext
from rmqkit.plugin.broker import Broker


def as_plugins_see_it(context: BrokerContext) -> Broker:
    """For the type checker, which compares the members and their types here."""
    return context


def test_a_broker_has_what_plugins_see() -> None:
    """Each member of the protocol is a field of the broker's context."""
    promised = {name for name, member in vars(Broker).items() if isinstance(member, property)}
    assert promised
    assert promised <= set(fields_dict(BrokerContext))
