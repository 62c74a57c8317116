"""Which broker a slave is about to follow: the replication protocol names none, its settings do."""

from __future__ import annotations

from rmqkit.errors import ProtocolError, RmqError
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit_ha.limits import MAX_TABLE_BYTES
from rmqkit_ha.settings import HaSettings, options

_TIMEOUT_MS = 3_000


def clients_address(broker: Broker) -> str:
    """The master's address for clients; empty while unknown."""
    return options(broker.config).master_address or broker.replication.master


async def is_own_master(broker: Broker, ha_address: str) -> bool:
    """Whether the broker at a replication address is certainly the master of this slave's group: this slave's
    own settings name the address (haMasterAddress), and at the address for clients the settings
    (GET_BROKER_CONFIG) have this cluster and name, and this replication address. False when that cannot be
    found out, and for an address of which only a name server speaks: anyone can register one, and answer with
    any settings. Raises ProtocolError for another cluster or name."""
    address = clients_address(broker)
    if not address:
        return False
    try:
        answer = await broker.pool.call(address, request(RequestCode.GET_BROKER_CONFIG), _TIMEOUT_MS)
    except (RmqError, OSError):
        return False
    if answer.code != ResponseCode.SUCCESS or len(answer.body) > MAX_TABLE_BYTES:
        return False
    lines = bytes(answer.body).decode(errors="replace").splitlines()
    said = {key: value for key, _, value in (line.partition("=") for line in lines)}
    config = broker.config
    own = config.broker_cluster_name, config.broker_name
    theirs = said.get("brokerClusterName", ""), said.get("brokerName", "")
    if not all(theirs):
        return False
    if own != theirs:
        raise ProtocolError(
            f"the broker {address} is {theirs[1]} of the cluster {theirs[0]}, and this one {own[1]} of"
            f" {own[0]}: it is not a slave of that master. Correct haMasterAddress, brokerName or"
            " brokerClusterName"
        )
    return bool(config.owned(HaSettings).ha_master_address) and _has_address(said, address, ha_address)


def _has_address(said: dict[str, str], clients: str, ha_address: str) -> bool:
    """Whether a broker with these settings serves slaves at an address."""
    given = Address.parse(ha_address)
    hosts = {Address.parse(clients).host, said.get("brokerIP1"), said.get("brokerIP2")}
    if given.host not in hosts:
        return False
    if given.scheme != "tcp":
        return True
    ports = {said.get("haListenPort")}
    if said.get("listenPort", "").isdecimal():
        ports.add(str(int(said["listenPort"]) + 1))
    return str(given.port) in ports
