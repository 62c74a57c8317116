"""Combined meaning of the `tls.*` settings (Java: TlsSystemConfig, TlsMode; wire-protocol sheet, section 9).

Differences from Java, for security: without a certificate there is no TLS instead of a self-signed one (which
`tls.test.mode.enable` requests), a client checks the server's certificate and its name by default, and a
requested client certificate is always checked.
"""

from __future__ import annotations

from attrs import frozen

from rmqkit.config.schema import Config
from rmqkit.errors import ConfigError

DISABLED, PERMISSIVE, ENFORCING = MODES = ("disabled", "permissive", "enforcing")
#: Values of tls.server.need.client.auth; RocketMQ's documents also write the last one in the second form.
NO_CLIENT_CERTIFICATE, _, REQUIRE, _REQUIRED = _CLIENT_AUTH = ("none", "optional", "require", "required")


@frozen
class OwnCertificate:
    """The files of one side's certificate and key, and the password of the key; empty when not configured.
    `side` is server or client."""

    side: str
    certificate: str
    key: str
    password: str

    def error(self, fault: str) -> ConfigError:
        """The error for files that cannot be used, with the settings and the required form."""
        where = f"tls.{self.side}.certPath = {self.certificate}"
        where += f", tls.{self.side}.keyPath = {self.key}" if self.key else ""
        return ConfigError(
            f"{where}: {fault}; both are PEM, the certificate with those that signed it behind it, the key of"
            f" that certificate and, if it is encrypted, with its password in tls.{self.side}.keyPassword"
        )


def own_certificate(config: Config, side: str) -> OwnCertificate:
    return OwnCertificate(
        side, *(getattr(config, f"tls_{side}_{name}") for name in ("cert_path", "key_path", "key_password"))
    )


def trust_error(side: str, path: str, fault: str = "") -> ConfigError:
    """The error for a file of trusted certificates that cannot be used."""
    said = f"{fault}; " if fault else ""
    key = f"tls.{side}.trustCertPath"
    return ConfigError(f"{key} = {path}: {said}it is a PEM file of certificates that sign the peers'")


def has_certificate(config: Config) -> bool:
    """Whether a server has a certificate, including that of the test mode."""
    return bool(config.tls_server_cert_path) or config.tls_test_mode_enable


def effective_mode(config: Config) -> str:
    """The TLS mode of a port that permits plain connections: the setting, else permissive with a certificate
    and disabled without."""
    return (config.tls_server_mode or PERMISSIVE) if has_certificate(config) else DISABLED


def client_auth(config: Config) -> str:
    """NO_CLIENT_CERTIFICATE, OPTIONAL or REQUIRE."""
    return REQUIRE if config.tls_server_need_client_auth == _REQUIRED else config.tls_server_need_client_auth


def faults(config: Config) -> list[tuple[str, str]]:
    """(key, fault). The files themselves are read when listening or connecting."""
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
            needed = "needs the certificates that sign those of clients: name their file"
            found.append((key, f"{needed} in tls.server.trustCertPath"))
        if not config.tls_server_auth_client:
            fault = f"cannot be false with {key}: a client's certificate is always checked here"
            found.append(("tls.server.authClient", fault))
    return found


def warnings(config: Config) -> list[str]:
    """Warnings at the start."""
    found = []
    if config.tls_test_mode_enable:
        found.append(
            "tls.test.mode.enable is for experiments: this process trusts every server, and clients cannot"
            " check this server's certificate"
        )
    elif not config.tls_client_auth_server:
        found.append("tls.client.authServer = false: this process trusts every server, unchecked")
    if config.tls_server_mode == PERMISSIVE and not has_certificate(config):
        found.append(
            "tls.server.mode = permissive has no effect without tls.server.certPath: only plain connections"
            " are accepted"
        )
    if client_auth(config) != NO_CLIENT_CERTIFICATE and effective_mode(config) != ENFORCING:
        found.append(
            f"tls.server.need.client.auth = {client_auth(config)} does not apply to plain connections, which"
            f" are accepted as well: set tls.server.mode = {ENFORCING} to refuse them"
        )
    return found
