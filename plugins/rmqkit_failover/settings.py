"""The table [plugins.failover]."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import Config, IntervalMs

PLUGIN = "failover"


class FailoverOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """[plugins.failover]

    coordinator  where the state of the group is kept, as in `etcd://10.0.0.1:2379,10.0.0.2:2379`; `etcds://`
                 connects with TLS. Empty: no failover
    prefix       beginning of the keys in the coordinator
    user         name and password for the coordinator, where it wants them
    password
    caPath       certificate of the authority by which the coordinator's certificate is checked with
                 `etcds://`; empty: those that the system trusts
    certPath     certificate and key of this broker for `etcds://`, where the coordinator wants them
    keyPath
    leaseS       a master that does not renew its lease within this time is replaced
    lagMs        a slave that does not have the whole log for this long leaves the in-sync set
    patienceMs   a planned switch whose member does nothing for this long is ignored
    """

    coordinator: str = ""
    prefix: str = "rmqkit"
    user: str = ""
    password: str = ""
    ca_path: str = ""
    cert_path: str = ""
    key_path: str = ""
    lease_s: Annotated[int, msgspec.Meta(ge=2, le=3_600)] = 6
    lag_ms: IntervalMs = 2_000
    patience_ms: IntervalMs = 10_000


def options(config: Config) -> FailoverOptions:
    """The table [plugins.failover]. Raises ConfigError."""
    return config.plugin_settings(PLUGIN, FailoverOptions)


def group_prefix(given: FailoverOptions, cluster: str, group: str) -> str:
    """The beginning of the keys of a group."""
    return f"{given.prefix}/{cluster}/{group}/"
