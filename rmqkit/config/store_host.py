"""The addresses of a broker: the one at which it listens, and the one in the routes of clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address

from rmqkit.config.schema import Config
from rmqkit.errors import ConfigError, DecodeError, Fault
from rmqkit.protocol.message_id import pack_host, unpack_host


def store_host(config: Config) -> bytes:
    """Packed host and port that clients use (8 or 20 bytes), which stores write into records and message ids.
    A name is resolved once.

    Raises ConfigError when it has no address.
    """
    key = "brokerIP1" if config.broker_ip1 else "bindAddress"
    return _packed(config, key, config.advertised_host, "set brokerIP1 to an IP address")


def address_faults(config: Config) -> Iterator[Fault]:
    """Hosts without an address, and the wildcard address as the one that clients connect to: each would
    connect to its own machine. Names are resolved."""
    key, host = (
        ("brokerIP1", config.broker_ip1) if config.broker_ip1 else ("bindAddress", config.bind_address)
    )
    if not host or _is_unspecified(host):
        yield Fault(
            key,
            f"{_named(config, key)}: routes would contain this address, and no client can reach it; set"
            " brokerIP1 to the address of this machine that clients use",
        )
    else:
        try:
            store_host(config)
        except ConfigError as error:
            yield from error.faults
    if config.broker_ip1 and config.bind_address:
        try:
            _packed(config, "bindAddress", config.bind_address, "set it to an IP address of this machine")
        except ConfigError as error:
            yield from error.faults


def address_warnings(config: Config) -> Iterator[Fault]:
    """An address for clients where nothing listens, because the broker listens on another one of the loopback
    alone. Nothing when there are `address_faults`."""
    if not config.broker_ip1 or not config.bind_address:
        return
    try:
        routed, _ = unpack_host(store_host(config))
        listens, _ = unpack_host(_packed(config, "bindAddress", config.bind_address, ""))
    except ConfigError:
        return
    if ip_address(listens).is_loopback and routed != listens:
        yield Fault(
            "brokerIP1",
            f"{_named(config, 'brokerIP1')}: routes contain this address, but the broker listens on"
            f" {_named(config, 'bindAddress').removeprefix('setting ')} alone: others reach it only by a"
            " forwarded port; set bindAddress = 0.0.0.0, or to the address of a network of this machine",
        )


def _packed(config: Config, key: str, host: str, remedy: str) -> bytes:
    """A host and the broker's port as bytes. Raises ConfigError when the host has no address."""
    try:
        return pack_host(host, config.listen_port)
    except DecodeError:
        pass
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        fault = f"{_named(config, key)}: the host {host!r} has no address: {error}; {remedy}"
        raise ConfigError.of([Fault(key, fault)]) from error
    return pack_host(str(found[0][4][0]), config.listen_port)


def _named(config: Config, key: str) -> str:
    return f"setting {key} = {config.setting(key)!r} ({config.sources.get(key, 'default')})"


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
