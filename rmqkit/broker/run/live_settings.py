"""UPDATE_BROKER_CONFIG: change settings of a running broker (Java: AdminBrokerProcessor.updateBrokerConfig,
Configuration)."""

from __future__ import annotations

from rmqkit.broker.run.context import BrokerContext
from rmqkit.config import Config, live_keys
from rmqkit.toolkit.settings_changes import SettingsChanges

#: Never changed by a request, regardless of `configBlackList`: another path would let a peer write files
#: anywhere.
_FORBIDDEN = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


def live_settings(broker: BrokerContext) -> SettingsChanges:
    """The changes of one broker's settings."""
    kinds = tuple(broker.registry.settings.values())

    def forbidden() -> frozenset[str]:
        return _FORBIDDEN | {key.strip() for key in broker.config.config_black_list.split(";")}

    def apply(fresh: Config, changed: list[str]) -> None:
        broker.config = fresh
        broker.topics.configure(fresh)
        broker.groups.configure(fresh)
        broker.filters.configure(fresh)
        if "brokerPermission" in changed:
            broker.topics.registration_changed()
        for listener in list(broker.on_config_change):
            listener()

    return SettingsChanges(lambda: broker.config, kinds, live_keys([Config, *kinds]), forbidden, apply)
