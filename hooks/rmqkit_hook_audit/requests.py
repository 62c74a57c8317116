"""The requests that change topics, groups, offsets, permissions or settings, with the names of their
events."""

from __future__ import annotations

import re

import msgspec

from rmqkit.errors import DecodeError, HeaderError
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command

ACTIONS: dict[RequestCode, str] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: "updateTopic",
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "updateTopics",
    RequestCode.DELETE_TOPIC_IN_BROKER: "deleteTopic",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "updateGroup",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "deleteGroup",
    RequestCode.UPDATE_BROKER_CONFIG: "updateBrokerConfig",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "resetOffset",
    RequestCode.CLONE_GROUP_OFFSET: "cloneGroupOffset",
    RequestCode.SET_MESSAGE_REQUEST_MODE: "setMessageRequestMode",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "resumeCheckHalfMessage",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "cleanExpiredConsumeQueue",
    RequestCode.CLEAN_UNUSED_TOPIC: "cleanUnusedTopic",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "deleteExpiredCommitLog",
    RequestCode.RECALL_MESSAGE: "recallMessage",
    RequestCode.AUTH_CREATE_USER: "createUser",
    RequestCode.AUTH_UPDATE_USER: "updateUser",
    RequestCode.AUTH_DELETE_USER: "deleteUser",
    RequestCode.AUTH_CREATE_ACL: "createAcl",
    RequestCode.AUTH_UPDATE_ACL: "updateAcl",
    RequestCode.AUTH_DELETE_ACL: "deleteAcl",
    # Requests of a name server in the same process.
    RequestCode.PUT_KV_CONFIG: "putKvConfig",
    RequestCode.DELETE_KV_CONFIG: "deleteKvConfig",
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: "wipeWritePermOfBroker",
    RequestCode.ADD_WRITE_PERM_OF_BROKER: "addWritePermOfBroker",
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "deleteTopicInNamesrv",
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: "registerTopicInNamesrv",
    RequestCode.UPDATE_NAMESRV_CONFIG: "updateNamesrvConfig",
}
#: A header may have 1 MiB, even if it is refused; an event keeps this many fields of it and this many
#: characters of each text.
_MAX_FIELDS = 32
MAX_TEXT = 256
_SECRET = re.compile(r"signature|secret|password|token", re.IGNORECASE)
#: The body of a group update is its configuration; an event needs only the name.
_GROUP_NAME = "groupName"


class _NamedGroup(msgspec.Struct):
    group_name: str | None = msgspec.field(default=None, name=_GROUP_NAME)


def shown_fields(request: Command) -> dict[str, str]:
    """The header's fields, shortened and without secrets. Empty for a header that cannot be decoded, which
    the answer reports."""
    try:
        fields = {
            name[:MAX_TEXT]: value[:MAX_TEXT] for name, value in list(request.fields().items())[:_MAX_FIELDS]
        }
    except HeaderError:
        return {}
    if request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        fields[_GROUP_NAME] = _group_name(request)[:MAX_TEXT]
    return {name: value for name, value in fields.items() if not _SECRET.search(name)}


def _group_name(request: Command) -> str:
    try:
        return request.decode_body(_NamedGroup).group_name or ""
    except DecodeError:
        return ""
