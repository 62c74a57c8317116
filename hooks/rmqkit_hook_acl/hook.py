"""The hook that admits requests: it asks who sent each of them, and whether that user may do it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rmqkit.plugin.access import PRINCIPAL, READ_CHECK
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import REPLICATION, Caller, Peer, StreamCaller
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.command import Command
from rmqkit.protocol.signature import ACCESS_KEY, AUTHORIZATION
from rmqkit_hook_acl.access import CERTIFICATE_USER, Access, host_of
from rmqkit_hook_acl.certificates import common_name

#: Proofs of single requests, which say nothing of others on the connection.
_OF_ONE_REQUEST = (ACCESS_KEY, AUTHORIZATION)


class AccessHook(RpcHook):
    """Guards every server of the process, and the replication port of a broker."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def connected(self, caller: Caller) -> None:
        access = self.access
        access.look()
        certificate = caller.transport.certificate
        if access.has_certificates and certificate is not None:
            name = common_name(certificate)
            if name is not None:
                caller.attributes[CERTIFICATE_USER] = caller.attributes[PRINCIPAL] = name
        if caller.server == REPLICATION:
            self._admit_slave(caller)
        else:
            caller.attributes[READ_CHECK] = partial(_check_read, access, caller)

    def _admit_slave(self, caller: Caller) -> None:
        """A slave reads all messages, and its reports acknowledge them: it needs what brokers need."""
        said = caller.introduction if isinstance(caller, StreamCaller) else None
        self.access.check_cluster(Command() if said is None else said, caller)

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        access = self.access
        access.look()
        host, was_admitted = host_of(peer), access.was_admitted
        refused: dict[int, Exception] | None = None
        for at, request in enumerate(requests):
            try:
                if not was_admitted(request, host):
                    self._admit(request, peer)
            except Exception as error:  # noqa: BLE001 - the runner tells refusals from failures; both admit nothing
                refused = refused or {}
                refused[at] = error
        return refused

    def _admit(self, request: Command, peer: Peer) -> None:
        access = self.access
        if access.is_trusted(request, peer):
            return
        principal = access.principal(request, peer)
        if access.settings.decides:
            access.check(principal, request, peer)
        if request.fields().keys().isdisjoint(_OF_ONE_REQUEST):
            peer.attributes[PRINCIPAL] = principal


def _check_read(access: Access, caller: Caller, request: Command, topic: str) -> None:
    if access.settings.decides:
        access.check_read(request, caller, topic)


__all__ = ["AccessHook"]
