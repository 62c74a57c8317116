"""Requests about the key-value configuration and about the name server's own settings (behaviour sheet, D6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rmqkit.abc import Answer, Outcome, Peer
from rmqkit.config import parse_properties, properties_text
from rmqkit.errors import RequestRefused
from rmqkit.model.route import KVTable
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import KvConfigRequestHeader, KvNamespaceRequestHeader, PutKvConfigRequestHeader
from rmqkit.protocol.headers.base import Header
from rmqkit_namesrv.state import Handler, NameServerState, json_body

#: Keys nobody may set from outside (Java: NamesrvConfig.configBlackList and what is always in it).
_FORBIDDEN = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
#: Settings read anew whenever they are needed, hence the ones that can be changed: key -> (attribute, type).
_CHANGEABLE: dict[str, tuple[str, type]] = {
    "orderMessageEnable": ("order_message_enable", bool),
    "enableAllTopicList": ("enable_all_topic_list", bool),
    "returnOrderTopicConfigToBroker": ("return_order_topic_config_to_broker", bool),
    "scanNotActiveBrokerInterval": ("scan_not_active_broker_interval", int),
}


class GetKvConfigResponseHeader(Header, kw_only=True):
    value: str | None = None


class SettingsRequests:
    def __init__(self, state: NameServerState) -> None:
        self._state = state

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_of_namespace,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    async def put_kv(self, request: Command, peer: Peer) -> Answer:
        header = request.header(PutKvConfigRequestHeader)
        await self._state.kv.put(header.namespace, header.key, header.value)
        return answer(request)

    def get_kv(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(KvConfigRequestHeader)
        value = self._state.kv.get(header.namespace, header.key)
        if value is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return answer(request, header=GetKvConfigResponseHeader(value=value))

    async def delete_kv(self, request: Command, peer: Peer) -> Answer:
        header = request.header(KvConfigRequestHeader)
        await self._state.kv.delete(header.namespace, header.key)
        return answer(request)

    def kv_of_namespace(self, request: Command, peer: Peer) -> Outcome:
        namespace = request.header(KvNamespaceRequestHeader).namespace
        table = self._state.kv.namespace(namespace)
        if table is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return answer(request, body=json_body(KVTable(table=table)))

    def update_config(self, request: Command, peer: Peer) -> Outcome:
        """Properties text in the body. All of it is taken or none. The change lasts until the process ends: Java writes it to its file,
        here the file is the owner's. A key that cannot change at run time is refused, where Java takes it in silence."""
        try:
            given = parse_properties(request.body.decode())
        except UnicodeDecodeError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the properties are not UTF-8: {error}") from error
        forbidden = sorted(_FORBIDDEN.intersection(given))
        if forbidden:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(forbidden)}")
        values = dict(_typed(key, text) for key, text in given.items())
        sources = self._state.config.sources | dict.fromkeys(given, f"request of {peer.remote_text}")
        self._state.config = msgspec.structs.replace(self._state.config, sources=sources, **values)
        return answer(request)

    def get_config(self, request: Command, peer: Peer) -> Outcome:
        return answer(request, body=properties_text(self._state.config).encode())


def _typed(key: str, text: str) -> tuple[str, Any]:
    if key not in _CHANGEABLE:
        changeable = ", ".join(sorted(_CHANGEABLE))
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{key} cannot be changed while the name server runs; these can: {changeable}")
    attribute, kind = _CHANGEABLE[key]
    try:
        value: Any = msgspec.convert(text.lower(), kind, strict=False)
    except msgspec.ValidationError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{key} = {text!r}: {error}") from error
    if kind is int and value <= 0:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{key} must be positive, not {text}")
    return attribute, value
