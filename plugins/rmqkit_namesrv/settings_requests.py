"""Requests for the key-value configuration and the name server's own settings (behaviour sheet, D6)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rmqkit.config import Config, live_keys, parse_properties, properties_text
from rmqkit.errors import RequestRefused
from rmqkit.model.route import KVTable
from rmqkit.model.text import text_of
from rmqkit.plugin.request import Answer, Outcome, Peer
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import KvConfigRequestHeader, KvNamespaceRequestHeader, PutKvConfigRequestHeader
from rmqkit.protocol.headers.base import Header
from rmqkit.toolkit.settings_changes import SettingsChanges
from rmqkit_namesrv.settings import NameServerSettings
from rmqkit_namesrv.state import Handler, NameServerState, json_body

#: Keys that cannot be set remotely (Java: NamesrvConfig.configBlackList and its fixed entries).
_FORBIDDEN = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class GetKvConfigResponseHeader(Header, kw_only=True):
    value: str | None = None


class SettingsRequests:
    def __init__(self, state: NameServerState) -> None:
        self._state = state
        self._changes = SettingsChanges(
            lambda: state.config,
            [NameServerSettings],
            live_keys([NameServerSettings]),
            lambda: _FORBIDDEN,
            self._apply,
        )

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_of_namespace,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    def put_kv(self, request: Command, peer: Peer) -> Outcome:
        return peer.answer_async(request, partial(self._put_kv, request))

    async def _put_kv(self, request: Command) -> Answer:
        header = request.header(PutKvConfigRequestHeader)
        await self._state.kv.put(header.namespace, header.key, header.value)
        return answer(request)

    def get_kv(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(KvConfigRequestHeader)
        value = self._state.kv.get(header.namespace, header.key)
        if value is None:
            raise RequestRefused(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return answer(request, header=GetKvConfigResponseHeader(value=value))

    def delete_kv(self, request: Command, peer: Peer) -> Outcome:
        return peer.answer_async(request, partial(self._delete_kv, request))

    async def _delete_kv(self, request: Command) -> Answer:
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
        """Change settings given as properties text, all or none, as a broker does. A key that cannot change
        at run time is refused; Java ignores it silently."""
        return peer.answer_async(request, partial(self._update_config, request))

    async def _update_config(self, request: Command) -> Answer:
        given = parse_properties(text_of(request.body))
        return answer(request, remark=await self._changes.update(given))

    def _apply(self, fresh: Config, changed: list[str]) -> None:
        state = self._state
        state.config, state.settings = fresh, fresh.owned(NameServerSettings)
        for listener in list(state.on_change):
            listener()

    def get_config(self, request: Command, peer: Peer) -> Outcome:
        return answer(request, body=properties_text(self._state.config, self._state.kinds).encode())
