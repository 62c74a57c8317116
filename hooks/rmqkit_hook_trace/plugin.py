"""Registers the hook that creates spans for the sends of a broker."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import ConfigError, how_to_install
from rmqkit.plugin.hooks import SendMessageHook
from rmqkit.plugin.hookspecs import Register

#: Before hooks that may refuse: the span of a refused send says so.
_ORDER = -900


@hookimpl
def rmqkit_register_send_message_hooks(register: Register[SendMessageHook], config: Config) -> None:
    try:
        from rmqkit_hook_trace.broker import SendSpans
    except ModuleNotFoundError as error:
        raise ConfigError(f"the hook 'trace' needs an extra ({error}): {how_to_install('otel')}") from error
    register("trace", SendSpans(), order=_ORDER)
