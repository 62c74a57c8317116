"""What the `tls.*` settings mean together (Java: TlsSystemConfig, TlsMode; wire-protocol sheet, section 9).

Differences to Java, on the safe side: without a certificate there is no TLS instead of a self-signed one (`tls.test.mode.enable` asks for that), a client
checks the server's certificate and its name unless told not to, and a client certificate that is asked for is always checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqkit.config import Config

DISABLED, PERMISSIVE, ENFORCING = MODES = ("disabled", "permissive", "enforcing")
#: Values of tls.server.need.client.auth; RocketMQ's documents also write the last one in the second form.
NO_CLIENT_CERTIFICATE, OPTIONAL, REQUIRE, _REQUIRED = _CLIENT_AUTH = ("none", "optional", "require", "required")


def has_certificate(config: Config) -> bool:
    """Whether a server has a certificate to show, be it one of the test mode."""
    return bool(config.tls_server_cert_path) or config.tls_test_mode_enable


def effective_mode(config: Config) -> str:
    """What a port that knows plain connections does about TLS: the setting, else permissive with a certificate and disabled without."""
    return (config.tls_server_mode or PERMISSIVE) if has_certificate(config) else DISABLED


def client_auth(config: Config) -> str:
    """NO_CLIENT_CERTIFICATE, OPTIONAL or REQUIRE."""
    return REQUIRE if config.tls_server_need_client_auth == _REQUIRED else config.tls_server_need_client_auth


def faults(config: Config) -> list[tuple[str, str]]:
    """(key, what is wrong). The files themselves are read when something listens or connects."""
    found = []
    if config.tls_server_mode not in ("", *MODES):
        found.append(("tls.server.mode", f"is {', '.join(MODES)}, or empty"))
    if config.tls_server_mode == ENFORCING and not has_certificate(config):
        found.append(("tls.server.mode", "needs a certificate: name its file in tls.server.certPath"))
    for side in ("server", "client"):
        if getattr(config, f"tls_{side}_key_path") and not getattr(config, f"tls_{side}_cert_path"):
            found.append((f"tls.{side}.keyPath", f"means nothing without tls.{side}.certPath"))
    if config.tls_server_need_client_auth not in _CLIENT_AUTH:
        found.append(("tls.server.need.client.auth", "is none, optional or require"))
    elif client_auth(config) != NO_CLIENT_CERTIFICATE:
        key = "tls.server.need.client.auth"
        if not has_certificate(config):
            found.append((key, "needs a certificate of the server: name its file in tls.server.certPath"))
        if not config.tls_server_trust_cert_path:
            found.append((key, "needs the certificates that sign those of clients: name their file in tls.server.trustCertPath"))
        if not config.tls_server_auth_client:
            found.append(("tls.server.authClient", f"cannot be false with {key}: a client's certificate is always checked here"))
    return found


def warnings(config: Config) -> list[str]:
    """What the user should know at the start."""
    found = []
    if config.tls_test_mode_enable:
        found.append(
            "tls.test.mode.enable is for trying things out: this process trusts every server, and nobody can check a server's certificate"
        )
    elif not config.tls_client_auth_server:
        found.append("tls.client.authServer = false: this process trusts every server, whoever it is")
    if config.tls_server_mode == PERMISSIVE and not has_certificate(config):
        found.append("tls.server.mode = permissive has no effect without tls.server.certPath: only plain connections are taken")
    if client_auth(config) != NO_CLIENT_CERTIFICATE and effective_mode(config) != ENFORCING:
        found.append(
            f"tls.server.need.client.auth = {client_auth(config)} does not concern plain connections, and these are taken too: "
            f"set tls.server.mode = {ENFORCING} to refuse them"
        )
    return found
