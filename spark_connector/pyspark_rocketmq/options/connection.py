"""The options for reaching a cluster, for reading and writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from pyspark_rocketmq.options.kinds import FLAG, NAME_SERVERS, TEXT, one_of
from pyspark_rocketmq.options.table import ALL, OptionError, option

#: Lower-cased names of other connectors' options that have no meaning here -> hint.
HINTS: dict[str, str] = {
    "kafka.bootstrap.servers": "RocketMQ clients connect to name servers; set nameServer = host:9876",
    "includeheaders": "the column properties is included unless `columns` omits it",
    "groupidprefix": "groups need no unique names here; set groupId",
}


@frozen(kw_only=True)
class ConnectionOptions:
    """How to reach a cluster."""

    name_server: str = option(
        "nameServer",
        NAME_SERVERS,
        absent="",
        where=ALL,
        aliases=("nameServerAddress", "namesrvAddr"),
        meaning="Name servers, `host:9876;host:9876`.",
    )
    access_key: str | None = option(
        "accessKey", TEXT, where=ALL, secret=True, meaning="Refused: requests cannot be signed yet."
    )
    secret_key: str | None = option(
        "secretKey", TEXT, where=ALL, secret=True, meaning="Refused: requests cannot be signed yet."
    )
    credentials_file: str | None = option(
        "credentialsFile", TEXT, where=ALL, meaning="Refused: requests cannot be signed yet."
    )
    tls: bool = option(
        "tls",
        FLAG,
        "false",
        where=ALL,
        meaning=(
            "Use TLS. Certificates are configured by the environment, such as "
            "RMQKIT_TLS_CLIENT_TRUST_CERT_PATH, of the driver and of every worker."
        ),
    )
    namespace: str = option(
        "namespace",
        TEXT,
        absent="",
        where=ALL,
        meaning="Prefix of the names of topics and group, as `namespace%topic`, also in the column topic.",
    )
    vip_channel: str = option(
        "vipChannel",
        one_of("false"),
        "false",
        where=ALL,
        meaning="The second port of old brokers; only false is accepted.",
    )


def check_connection(given: Mapping[str, Any]) -> None:
    """Check the options of a connection. Raises OptionError for settings with which no connection is
    possible."""
    for name, shown in (
        ("access_key", "accessKey"),
        ("secret_key", "secretKey"),
        ("credentials_file", "credentialsFile"),
    ):
        if given.get(name) is not None:
            raise OptionError(
                f"option {shown}: requests cannot be signed yet, so a cluster with access control cannot be"
                " used. Remove the option, and let the brokers accept requests from this network"
                " (globalWhiteRemoteAddresses)"
            )
