"""Copies a running broker's messages and tables into a directory, as a slave that catches up and goes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import trio
from attrs import frozen

from rmqkit.broker.run.running import RunningBroker, run_broker
from rmqkit.client import Client
from rmqkit.config import Config, is_secret, spellings
from rmqkit.errors import BrokerError, ConfigError, ConnectFailed, ConnectionLost, RequestTimeout, RmqError
from rmqkit.model.access import AclTable
from rmqkit.model.backup import NONE, TAKEN, WITHHELD, BrokerBackup
from rmqkit.plugin import loader
from rmqkit.protocol.codes import ResponseCode
from rmqkit.toolkit.json_file import JsonFile

_log = logging.getLogger(__name__)

#: An id that no slave of a group has: the copy is registered nowhere.
_BROKER_ID = 999_999
_LOOK_EVERY_S = 0.05
#: How often name servers are asked whether there is another master, while nothing comes.
_ASK_EVERY_S = 2.0
#: Where a broker has its users and policies, unless authConfigPath says otherwise.
ACCOUNTS = Path("config", "acl.json")
_SIGNS_BY = "innerClientAuthenticationCredentials"
_AS_SUPER = (
    "make the backup as a super user (RMQKIT_ACCESS_KEY, RMQKIT_SECRET_KEY), or copy acl.json from its own"
    " directory"
)


class BackupStalled(RmqError):
    """A broker's log or tables did not come for a while."""


Progress = Callable[[int, int], None]
#: The address of another master than the one that is copied.
Another = Callable[[], Awaitable[str | None]]
SettingsOf = Callable[[Mapping[str, str]], Config]


async def back_up(
    client: Client,
    name: str,
    address: str,
    directory: Path,
    settings_of: SettingsOf,
    patience_s: float,
    show: Progress,
) -> BrokerBackup:
    """Copy what the broker `name`, whose master is at `address`, has now: its log up to the present end,
    topics, groups, offsets, what plugins let slaves copy, and users and policies where the caller is a super
    user. A directory that has an older copy gets what is new. Where another master is elected meanwhile, the
    copy goes on with that one. `settings_of` gives the settings of the command line, above all the kind of
    the store, and how to connect and sign, with others in place of what it has.

    Raises ConfigError for a broker without a replication port, and for a directory that holds something else;
    BackupStalled when nothing arrives for `patience_s`. When cancelled, the directory holds a part of the
    log, and the next run goes on from there."""
    source = _Source(client, name, address)
    while True:
        try:
            return await _copied(source, directory, settings_of, patience_s, show)
        except RmqError as error:
            another = await source.another()
            if another is None and isinstance(error, (ConnectFailed, ConnectionLost, RequestTimeout)):
                _log.warning("waiting %g s for another master of %s: %s", patience_s, name, error)
                with trio.move_on_after(patience_s):
                    while another is None:
                        await trio.sleep(_ASK_EVERY_S)
                        another = await source.another()
            if another is None:
                raise
            _log.warning("%s is the master of %s now, going on there: %s", another, name, error)
            source = _Source(client, name, another)


@frozen
class _Source:
    """The master that is copied."""

    client: Client
    name: str
    address: str

    async def another(self) -> str | None:
        """The address of another broker that is the master now; None when there is none, or nobody can be
        asked."""
        try:
            found = (await self.client.admin.masters(broker=self.name)).get(self.name)
        except RmqError:
            return None
        return None if found == self.address else found


async def _copied(
    source: _Source, directory: Path, settings_of: SettingsOf, patience_s: float, show: Progress
) -> BrokerBackup:
    """Copy one master. Raises as `back_up`, and what asking the master raises."""
    admin, name, address = source.client.admin, source.name, source.address
    ha_address = await admin.replication_address(address)
    if ha_address is None:
        raise ConfigError(
            f"{name} ({address}) serves no slaves, and a backup is made as one: start it with"
            " --set brokerRole=ASYNC_MASTER"
        )
    theirs = await admin.broker_settings(address)
    end = int((await admin.runtime_info(address))["commitLogMaxOffset"])
    values = _slave(theirs, name, address, ha_address, directory)
    config = settings_of(values | _credentials(settings_of({})))
    registry = loader.load(config)
    failure: RmqError | None = None
    async with trio.open_nursery() as nursery:
        running: RunningBroker = await nursery.start(run_broker, config, registry)
        copy = running.context
        began = copy.store.end_offset
        try:
            await _catch_up(running, end, patience_s, show, source.another)
            await _tables(running, source.client, address, patience_s)
            accounts, users = await _accounts(
                source.client, name, theirs, directory, signs=bool(config.access_key)
            )
        except RmqError as error:
            failure = error
        else:
            found = BrokerBackup(
                broker=name,
                cluster=config.broker_cluster_name,
                address=address,
                store=config.store,
                start=copy.store.start_offset,
                end=copy.store.end_offset,
                new_bytes=copy.store.end_offset - max(began, copy.store.start_offset),
                topics=len(copy.topics.configs),
                groups=len(copy.groups.configs),
                accounts=accounts,
                users=users,
                settings={key: value for key, value in theirs.items() if not is_secret(key)},
            )
        running.stop.set()
    if failure is not None:
        raise failure
    return found


def _slave(
    theirs: dict[str, str], name: str, address: str, ha_address: str, directory: Path
) -> dict[str, str]:
    """The settings of the slave. It deletes nothing, whatever the age of the messages, and serves nobody."""
    return {
        "brokerName": name,
        "brokerClusterName": theirs.get("brokerClusterName", "DefaultCluster"),
        "brokerId": str(_BROKER_ID),
        "brokerRole": "SLAVE",
        "haMasterAddress": ha_address,
        "plugins.ha.masterAddress": address,
        # Apache's masters, whose settings do not have this one, take no introduction.
        "plugins.ha.introduce": str("store" in theirs).lower(),
        "plugins.ha.tablesIntervalMs": "200",
        "mappedFileSizeCommitLog": theirs.get("mappedFileSizeCommitLog", "1073741824"),
        "maxMessageSize": theirs.get("maxMessageSize", "4194304"),
        "storePathRootDir": str(directory),
        "namesrvAddr": "",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "hooks": "",
        "disabledServices": "retention,registration,protection,water-marks",
    }


def _credentials(given: Config) -> dict[str, str]:
    """With what the slave signs: the keys of the caller, unless the settings name others for servers."""
    if not given.access_key or spellings(given.unknown, _SIGNS_BY):
        return {}
    keys = {"accessKey": given.access_key, "secretKey": given.secret_key}
    return {_SIGNS_BY: msgspec.json.encode(keys).decode()}


async def _accounts(
    client: Client, name: str, theirs: Mapping[str, str], directory: Path, *, signs: bool
) -> tuple[str, int]:
    """Copy the users and policies into the table that a broker on this directory reads, for its owner alone.
    What became of them (`BrokerBackup.accounts`), and the number of users. `signs`: the caller has keys."""
    path, table, reason = directory / ACCOUNTS, None, ""
    try:
        table = await client.access.table(name)
    except BrokerError as error:
        # Apache's brokers without access control, which everything else has shown, fail to list users.
        if error.code != ResponseCode.SYSTEM_ERROR or signs:
            reason = f"{error}; {_AS_SUPER}"
    if table is not None and not all(each.password for each in table.users):
        reason = f"it gives no passwords; {_AS_SUPER}"
    elif table is None and theirs.get("aclEnable") == "true":
        reason = reason or "RocketMQ 4 has them in conf/plain_acl.yml, copy that"
    if reason:
        _log.warning("users and policies of %s are not copied: %s", name, reason)
        return WITHHELD, 0
    if table is None:
        path.unlink(missing_ok=True)
        return NONE, 0
    path.parent.mkdir(exist_ok=True)
    await trio.to_thread.run_sync(JsonFile(path, AclTable, is_private=True).save, table)
    return TAKEN, len(table.users)


async def _catch_up(
    running: RunningBroker, end: int, patience_s: float, show: Progress, another: Another
) -> None:
    """Wait until the copy has the log up to `end`. Raises BackupStalled, early when there is another
    master."""
    store = running.context.store
    seen, moved_at, asked_at = -1, 0.0, 0.0
    while store.end_offset < end:
        show(store.end_offset - store.start_offset, end - store.start_offset)
        now = trio.current_time()
        if store.end_offset != seen:
            seen, moved_at, asked_at = store.end_offset, now, now
        elif now > moved_at + patience_s or (now > asked_at + _ASK_EVERY_S and await another() is not None):
            raise BackupStalled(
                f"nothing of {running.context.config.broker_name} has come for {now - moved_at:.0f} s, its"
                f" log is copied to {seen} of {end}: the lines above say why, and the next run goes on from"
                " there"
            )
        elif now > asked_at + _ASK_EVERY_S:
            asked_at = now
        await trio.sleep(_LOOK_EVERY_S)


async def _tables(running: RunningBroker, client: Client, address: str, patience_s: float) -> None:
    """Wait until the copy has the topics and offsets that the broker has now. Raises BackupStalled."""
    topics = await client.admin.topic_configs(address)
    offsets = await client.admin.consumer_offsets(address)
    copy, missing = running.context, set[str]()
    with trio.move_on_after(patience_s):
        while True:
            missing = topics.keys() - copy.topics.configs.keys()
            missing |= offsets.keys() - copy.offsets.table().offset_table.keys()
            if not missing:
                return
            await trio.sleep(_LOOK_EVERY_S)
    raise BackupStalled(
        f"tables of {address} were not copied within {patience_s:g} s, {sorted(missing)[0]} is missing: the"
        " lines above say why"
    )


__all__ = ["ACCOUNTS", "BackupStalled", "back_up"]
