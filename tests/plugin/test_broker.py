"""The protocols that plugins see of a broker match the broker."""

from __future__ import annotations

import pytest
from attrs import fields_dict

from rmqkit.broker.run.context import BrokerContext
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.request_broker import RequestBroker


def as_services_see_it(context: BrokerContext) -> Broker:
    """For the type checker, which compares the members and their types here."""
    return context


def as_processors_see_it(context: BrokerContext) -> RequestBroker:
    """As `as_services_see_it`."""
    return context


@pytest.mark.parametrize("port", [Broker, RequestBroker])
def test_a_broker_has_what_plugins_see(port: type) -> None:
    """Each member of a protocol is a field or a property of the broker's context."""
    promised = {name for name, member in vars(port).items() if isinstance(member, property)}
    assert promised
    assert promised <= {*fields_dict(BrokerContext), *vars(BrokerContext)}
