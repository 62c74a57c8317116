"""The options for reaching a cluster, for reading and writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from pyspark_rocketmq.options.kinds import FLAG, NAME_SERVERS, TEXT, one_of
from pyspark_rocketmq.options.table import ALL, OptionError, option
from rmqkit.client.settings import ClientKeywords
from rmqkit.config import read_file
from rmqkit.errors import ConfigError

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
        "accessKey",
        TEXT,
        where=ALL,
        secret=True,
        meaning="Name of the user that signs the requests; needs secretKey. Default: RMQKIT_ACCESS_KEY.",
    )
    secret_key: str | None = option(
        "secretKey", TEXT, where=ALL, secret=True, meaning="Password of that user."
    )
    credentials_file: str | None = option(
        "credentialsFile",
        TEXT,
        where=ALL,
        meaning=(
            "In place of both a file, on the driver and on every worker, with the lines `accessKey=...` and "
            "`secretKey=...`."
        ),
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
    names = {"access_key": "accessKey", "secret_key": "secretKey"}
    missing = [shown for name, shown in names.items() if not given.get(name)]
    if len(missing) == 1:
        raise OptionError(f"option {missing[0]} is missing: accessKey and secretKey go together")
    if given.get("credentials_file") and not missing:
        raise OptionError("option credentialsFile: give the file, or accessKey and secretKey")


def client_keywords(options: ConnectionOptions) -> ClientKeywords:
    """How a client reaches the cluster. Raises ConfigError for a file that cannot be read."""
    keywords = ClientKeywords(transport="tls" if options.tls else "")
    access_key, secret_key = options.access_key, options.secret_key
    if options.credentials_file:
        lines = read_file(options.credentials_file)
        access_key, secret_key = lines.get("accessKey"), lines.get("secretKey")
        if not (access_key and secret_key):
            raise ConfigError(
                f"{options.credentials_file}: the lines accessKey=... and secretKey=... are missing"
            )
    if access_key and secret_key:
        keywords |= {"access_key": access_key, "secret_key": secret_key}
    return keywords
