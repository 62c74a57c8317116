"""Settings of access control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqkit import config as settings
from rmqkit.broker.run import checks
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.toolkit.signing import SignCalls
from rmqkit_hook_acl.hook import AccessHook
from rmqkit_hook_acl.settings import AclSettings
from tests.hooks.acl.kit import CHECKED, INNER, ROOT


def loaded(directory: Path, **flags: Any) -> loader.Registry:
    """The plugins of a server with these settings, checked as at its start."""
    config = settings.load(environ={}, flags={"storePathRootDir": str(directory), "store": "memory"} | flags)
    registry = loader.load(config)
    checks.check(config, registry)
    return registry


def test_access_control_is_off_by_default(tmp_path: Path) -> None:
    """Without a setting the plugin is not even imported."""
    registry = loaded(tmp_path)
    assert not [plugin for plugin in registry.plugins if plugin.name == "acl" and plugin.enabled]
    assert not [entry for entry in registry.rpc_hooks.entries if entry.plugin == "acl"]


def test_the_settings_switch_it_on(tmp_path: Path) -> None:
    """A server with authentication checks requests; one with credentials alone signs its own and checks
    nothing."""
    registry = loaded(tmp_path, **CHECKED)
    assert [type(each.hook) for each in registry.rpc_hooks.entries if each.plugin == "acl"] == [AccessHook]
    assert [type(hook) for hook in registry.call_hooks] == [SignCalls]
    inner = {"innerClientAuthenticationCredentials": CHECKED["innerClientAuthenticationCredentials"]}
    registry = loaded(tmp_path, **inner)
    assert not [entry for entry in registry.rpc_hooks.entries if entry.plugin == "acl"]
    assert [type(hook) for hook in registry.call_hooks] == [SignCalls]


def test_users_of_the_settings() -> None:
    """Both are super users; of two with one name the first one counts."""
    found = settings.load(environ={}, flags=dict(CHECKED)).owned(AclSettings).super_users()
    assert {(user.name, user.password, user.is_super) for user in found.values()} == {
        (*ROOT, True),
        (*INNER, True),
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"authorizationEnabled": "true"}, "needs authenticationEnabled"),
        ({"authenticationEnabled": "perhaps"}, "the plugin acl is off"),
        ({**CHECKED, "initAuthenticationUser": "root:geheim"}, "not a JSON object"),
        ({**CHECKED, "initAuthenticationUser": '{"username":"root"}'}, "password"),
        (
            {**CHECKED, "innerClientAuthenticationCredentials": '{"accessKey":"a","secretKey":"geheim"'},
            "not a JSON",
        ),
        ({**CHECKED, "authenticationWhitelist": "105,route"}, "request codes"),
        ({**CHECKED, "authenticationProvider": "com.example.Mine"}, "authenticationProvider"),
        ({**CHECKED, "migrateAuthFromV1Enabled": "true"}, "migrateAuthFromV1Enabled"),
        ({**CHECKED, "disabledPlugins": "acl"}, "the plugin acl is off"),
        ({"authenticationEnable": "true"}, "did you mean 'authenticationEnabled'"),
        ({"aclEnabled": "true"}, "did you mean 'aclEnable'"),
        ({"authorisation": "true"}, "seems to ask for protection"),
        ({"tls.server.trustStore": "x"}, "seems to ask for protection"),
        ({**CHECKED, "plugins.acl.allow": "night"}, "no entry point 'night'"),
        ({**CHECKED, "plugins.acl.tokens": "saml"}, "no entry point 'saml'"),
        ({**CHECKED, "plugins.acl.tokens": "jwt"}, "jwtIssuer"),
        ({"aclEnable": "true"}, "plain_acl.yml"),
    ],
)
def test_what_stops_the_start(tmp_path: Path, flags: dict[str, str], said: str) -> None:
    """A setting about protection that nobody understands, or that contradicts itself, stops the start; no
    error has a secret."""
    with pytest.raises(ConfigError, match=said) as caught:
        loaded(tmp_path, **flags)
    assert "geheim" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    """`rmqkit config show`, GET_BROKER_CONFIG and the text of the settings mask them."""
    flags = {**CHECKED, "accessKey": "app", "secretKey": "app-secret", "securityToken": "app-token"}
    config = settings.load(environ={}, flags=flags)
    shown = (
        repr(config) + str(config.described([AclSettings])) + settings.properties_text(config, [AclSettings])
    )
    for secret in (ROOT[1], INNER[1], "app-secret", "app-token"):
        assert secret not in shown


def test_a_client_takes_its_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """RMQKIT_ACCESS_KEY and RMQKIT_SECRET_KEY are accessKey and secretKey."""
    config = settings.load(environ={"RMQKIT_ACCESS_KEY": "app", "RMQKIT_SECRET_KEY": "app-secret"})
    assert (config.access_key, config.secret_key) == ("app", "app-secret")
    assert not config.warnings
    assert json.loads(CHECKED["initAuthenticationUser"])["username"] == ROOT[0]


@pytest.mark.row("S054")
def test_one_file_has_the_settings_of_all(tmp_path: Path) -> None:
    """The keys of Java's five configuration objects are read from one broker.conf, each by its owner, and the
    start checks them together."""
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerName=one\nlistenPort=20911\ntls.enable=true\nflushDiskType=SYNC_FLUSH\nfileReservedTime=48\n"
        'authenticationEnabled=true\ninitAuthenticationUser={"username":"root","password":"root-secret"}\n'
    )
    config = settings.load(file, environ={}, flags={"storePathRootDir": str(tmp_path)})
    registry = loader.load(config)
    assert checks.examine(config, registry).faults == []
    assert (config.broker_name, config.listen_port, config.tls_enable) == ("one", 20_911, True)
    assert config.flush_policy == "SYNC_FLUSH"
    assert config.setting("fileReservedTime", registry.settings.values()) == 48
    owned = config.owned(AclSettings)
    assert owned.authentication_enabled
    assert not owned.authorization_enabled
    assert owned.super_users()["root"].password == "root-secret"
