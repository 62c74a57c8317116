"""How the console reaches its cluster: in its own name, and in that of people who log in."""

from __future__ import annotations

from attrs import frozen

from rmqkit.client import Client
from rmqkit.config import Config
from rmqkit.plugin.address import Connect


@frozen(kw_only=True)
class Clients:
    """Makes clients of one cluster.

    namesrv    addresses of the name servers
    config     settings of the transports, and `accessKey` and `secretKey` of the console itself
    connect    opens connections; None: by the transports of the installed plugins
    transport  scheme of addresses without one
    namespace  of the topics and groups
    """

    namesrv: str
    config: Config
    connect: Connect | None = None
    transport: str = ""
    namespace: str = ""

    @property
    def is_signed(self) -> bool:
        """Whether the console has a user of its own."""
        return bool(self.config.access_key or self.config.security_token)

    def own(self) -> Client:
        """A client of the console itself. Raises ConfigError."""
        return self.client("", "")

    def client(self, access_key: str, secret_key: str) -> Client:
        """A client of a user; without one that of the console itself. Raises ConfigError."""
        return Client(
            self.namesrv,
            config=self.config,
            connect=self.connect,
            transport=self.transport,
            namespace=self.namespace,
            access_key=access_key,
            secret_key=secret_key,
        )


__all__ = ["Clients"]
