"""The users and policies of one server process, from the settings and the files, and what they decide."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from time import monotonic

import trio

from rmqkit.config import Config
from rmqkit.errors import ConfigError, DecodeError, HeaderError, RequestRefused
from rmqkit.plugin.access import TokenVerifier
from rmqkit.plugin.request import NAME_SERVER, Caller
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.signature import (
    ACCESS_KEY,
    AUTHORIZATION,
    DATE_TIME,
    GRPC,
    PROXY_KEY,
    PROXY_SIGNATURE,
    SECURITY_TOKEN,
    SIGNATURE,
    Secret,
    content_of,
    grpc_proof,
)
from rmqkit_hook_acl.accounts import Accounts, NoAccounts, PlainAccounts
from rmqkit_hook_acl.decide import Decisions, Need, Verdict
from rmqkit_hook_acl.files import AclFile
from rmqkit_hook_acl.functions import functions, verifiers
from rmqkit_hook_acl.model import DISABLED, Action, Policies, User
from rmqkit_hook_acl.needs import NAMING, named_by, needs_of, on_topic
from rmqkit_hook_acl.settings import AclSettings, codes_of, directory_of, options

_log = logging.getLogger(__name__)
#: Whoever sent a request of a code that needs no authentication, without proof.
ANONYMOUS = ""
#: The attribute of a caller with the user that its certificate names.
CERTIFICATE_USER = "acl.certificate-user"
_HOST = "acl.host"
#: Fields that some clients leave out of what they sign (wire-protocol sheet, section 7.1).
_UNSIGNED = ("_UNIQUE_KEY_QUERY", SECURITY_TOKEN)
_READ = Action.SUB | Action.GET


#: Changes copies of users and policies. Raises RequestRefused.
Change = Callable[[dict[str, User], dict[str, Policies]], None]


class Access:
    """Decides about requests. Everything belongs to one event loop.

    users     all users by name: those of acl.json, of plain_acl.yml and of the settings, the first one counts
    policies  their policies by name
    """

    def __init__(self, config: Config, *, time: Callable[[], float] = monotonic) -> None:
        settings, chosen = config.owned(AclSettings), options(config)
        self.settings = settings
        self.credentials = settings.credentials()
        self.cluster = config.broker_cluster_name
        self.has_certificates = chosen.certificates
        self.verifiers: tuple[TokenVerifier, ...] = verifiers(config, chosen.tokens)
        self.users: dict[str, User] = {}
        #: Passwords of enabled users, ready to check signatures.
        self._secrets: dict[str, Secret] = {}
        #: Users about whom some rules look at the address.
        self._bound: frozenset[str] = frozenset()
        #: Requests that were allowed by policies alone: user, code, what the header names, and the address if
        #: policies look at it.
        self._allowed: set[tuple[str, int, tuple[str | None, ...], str]] = set()
        self.policies: dict[str, Policies] = {}
        self._fixed = settings.super_users()
        self._open_codes = codes_of(settings.authentication_whitelist)
        self._free_codes = codes_of(settings.authorization_whitelist)
        self._code = (
            ResponseCode.NO_PERMISSION if settings.authentication_enabled else ResponseCode.SYSTEM_ERROR
        )
        self._changing = trio.Lock()
        self._time, self._look_s = time, chosen.look_interval_ms / 1000
        self._looked_at = -self._look_s
        self.file = AclFile(directory_of(config) / "acl.json")
        self._accounts: Accounts = (
            PlainAccounts(chosen.plain_acl or directory_of(config) / "plain_acl.yml")
            if settings.acl_enable
            else NoAccounts()
        )
        self.decisions = Decisions(
            settings.stateful_authorization_cache_max_num, tuple(functions(chosen.allow))
        )

    # --- the tables -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the files at a start. Raises ConfigError for one that cannot be read."""
        self.file.read()
        self._accounts.read()
        self._know()
        self._looked_at = self._time()

    def look(self) -> None:
        """Read the files again if they have changed since the last look, which is at most so long ago as the
        settings say. A file that cannot be read leaves everything as it is; a line of the log says so."""
        now = self._time()
        if now - self._looked_at < self._look_s:
            return
        self._looked_at = now
        changed = False
        for source in (self.file, self._accounts):
            try:
                changed |= source.read_changed()
            except ConfigError as error:
                _log.error("access control goes on with what it knows: %s", error)
        if changed:
            self._know()
            _log.info("access control: %d users", len(self.users))

    async def update(self, change: Change) -> None:
        """Change the table acl.json: one after the other, on the device before it counts. Raises what
        `change` raises, and OSError; then everything is as it was. Cancelled: a change that is being written
        counts."""
        async with self._changing:
            self.file.read_changed()
            users, policies = dict(self.file.users), dict(self.file.policies)
            change(users, policies)
            if (users, policies) == (self.file.users, self.file.policies):
                return
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self.file.write, users, policies)
            self.change(users, policies)

    def change(self, users: Mapping[str, User], policies: Mapping[str, Policies]) -> None:
        """Take over a changed table, which has been written."""
        self.file.users, self.file.policies = dict(users), dict(policies)
        self._know()

    def _know(self) -> None:
        self.users = {**self._fixed, **self._accounts.users, **self.file.users}
        self.policies = {**self._accounts.policies, **self.file.policies}
        self.decisions.know(self.users, self.policies)
        self._secrets = {}
        self._allowed.clear()
        self._bound = self.decisions.with_sources()

    def without_given(self, users: Mapping[str, User]) -> dict[str, User]:
        """The users without those that the settings or plain_acl.yml have just so."""
        given = {**self._fixed, **self._accounts.users}
        return {name: user for name, user in users.items() if given.get(name) != user}

    def is_fixed(self, name: str) -> bool:
        """Whether a user is not one of acl.json."""
        return name in self.users and name not in self.file.users

    # --- who ------------------------------------------------------------------------------------------------

    def principal(self, request: Command, caller: Caller) -> str:
        """The name of the user that sent a request. Raises RequestRefused when that is not proven, unless its
        code is one of authenticationWhitelist: the user may be one of others, whom this server does not
        know."""
        try:
            return self._proven(request, caller)
        except RequestRefused:
            if request.code in self._open_codes:
                return ANONYMOUS
            raise

    def _proven(self, request: Command, caller: Caller) -> str:
        try:
            fields = request.fields()
        except HeaderError as error:
            raise RequestRefused(self._code, str(error)) from error
        key = fields.get(ACCESS_KEY)
        if key:
            return self._signed(key, fields, request.body)
        if AUTHORIZATION in fields and (caller.protocol == GRPC or self._is_of_proxy(fields, request.body)):
            return self._signed_date(fields)
        token = fields.get(SECURITY_TOKEN)
        if token and self.verifiers:
            return self._enabled(self._of_token(token)).name
        known = caller.attributes.get(CERTIFICATE_USER)
        if isinstance(known, str):
            return self._enabled(known).name
        raise self.refusal("username cannot be null.")

    def _is_of_proxy(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether a super user vouches that the request is a call of gRPC. Raises RequestRefused for a wrong
        signature."""
        name = fields.get(PROXY_KEY)
        if not name or not self._enabled(name).is_super:
            return False
        given = fields.get(PROXY_SIGNATURE, "").encode()
        content = content_of(fields, body, (PROXY_SIGNATURE,))
        if not hmac.compare_digest(self._secret(name).sign(content), given):
            raise self.refusal("check signature failed.")
        return True

    def _secret(self, key: str) -> Secret:
        secret = self._secrets.get(key)
        if secret is None:
            secret = self._secrets[key] = Secret(self._enabled(key).password)
        return secret

    def _signed_date(self, fields: Mapping[str, str]) -> str:
        """The user that has signed the date of a call, which is all that clients of gRPC sign."""
        found = grpc_proof(fields[AUTHORIZATION])
        if found is None:
            raise self.refusal("the authorization is not of the form MQv2-HMAC-SHA1.")
        key, given = found
        date = fields.get(DATE_TIME, "").encode()
        if date and hmac.compare_digest(self._secret(key).digest(date), given):
            return key
        raise self.refusal("check signature failed.")

    def _signed(self, key: str, fields: Mapping[str, str], body: bytes) -> str:
        secret = self._secret(key)
        given = fields.get(SIGNATURE, "").encode()
        if hmac.compare_digest(secret.sign(content_of(fields, body)), given):
            return key
        for without in _UNSIGNED:
            if without in fields and hmac.compare_digest(
                secret.sign(content_of(fields, body, (without,))), given
            ):
                return key
        raise self.refusal("check signature failed.")

    def _of_token(self, token: str) -> str:
        for verifier in self.verifiers:
            found = verifier.principal(token)
            if found is not None:
                return found
        raise self.refusal("the security token is of no kind that is accepted here.")

    def _enabled(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise self.refusal(f"User:{name} is not found.")
        if user.status == DISABLED:
            raise self.refusal(f"User:{name} is disabled.")
        return user

    def refusal(self, text: str) -> RequestRefused:
        """The refusal of a request, with the code of the generation that is switched on (wire-protocol sheet,
        section 7.2)."""
        return RequestRefused(self._code, text)

    # --- what -----------------------------------------------------------------------------------------------

    def was_admitted(self, request: Command, host: str) -> bool:
        """Whether a request is well signed, and like one that was allowed before: what most requests are,
        found with one look at each. `principal` and `check` decide about others, and say why they refuse
        one."""
        try:
            fields = request.fields()
        except HeaderError:
            return False
        key = fields.get(ACCESS_KEY, "")
        secret = self._secrets.get(key)
        names = NAMING.get(request.code)
        if secret is None or names is None:
            return False
        named = tuple(map(fields.get, names))
        if (key, request.code, named, host if key in self._bound else "") not in self._allowed:
            return False
        given = fields.get(SIGNATURE, "").encode()
        return hmac.compare_digest(secret.sign(content_of(fields, request.body)), given)

    def is_trusted(self, request: Command, caller: Caller) -> bool:
        """Whether the address of a peer alone admits its requests, as accounts of RocketMQ 4 can say."""
        return self._accounts.is_trusted(request, host_of(caller))

    def check(self, principal: str, request: Command, caller: Caller) -> None:
        """Raise RequestRefused unless the user may do what the request wants."""
        named = named_by(request)
        host = host_of(caller)
        key = principal, request.code, named or (), host if principal in self._bound else ""
        if named is not None and key in self._allowed:
            return
        if request.code in self._free_codes or _is_route(request, caller):
            return
        user = self.users.get(principal)
        if user is None or not user.is_super:
            try:
                needs = needs_of(request, self.cluster)
            except (DecodeError, HeaderError) as error:
                raise self.refusal(f"cannot tell what the request is about: {error}") from error
            for need in needs:
                self.require(principal, need, host)
        if named is not None and not self.decisions.rules:
            if len(self._allowed) >= self.decisions.keep:
                self._allowed.clear()
            self._allowed.add(key)

    def check_read(self, request: Command, caller: Caller, topic: str) -> None:
        """Raise RequestRefused unless the sender of a request may read a topic."""
        if request.code in self._free_codes or self.is_trusted(request, caller):
            return
        self.require(self.principal(request, caller), on_topic(topic, _READ), host_of(caller))

    def check_cluster(self, request: Command, caller: Caller) -> None:
        """Raise RequestRefused unless the sender of a request may change the cluster."""
        self.require(
            self.principal(request, caller), Need("Cluster", self.cluster, Action.UPDATE), host_of(caller)
        )

    def require(self, principal: str, need: Need, host: str) -> None:
        """Raise RequestRefused unless the user may do something."""
        verdict = self.decisions.verdict(principal, need, host)
        if not verdict.is_allowed:
            raise self.refusal(
                f"User:{principal} has no permission to access {need} from {host}, {verdict.text}"
            )

    def explained(self, name: str, need: Need, host: str) -> Verdict:
        """The verdict about a user with its rule, as requests from that address get it."""
        user = self.users.get(name)
        if not self.settings.decides:
            return Verdict(True, "authorizationEnabled = false: every user may do everything")
        if user is not None and user.status == DISABLED:
            return Verdict(False, "the user is disabled")
        return self.decisions.verdict(name, need, host)


def _is_route(request: Command, caller: Caller) -> bool:
    """Whether a name server is asked where a topic is, which every user may know: a Java client that is not
    told says that there is no such topic, and from the broker it hears who may not do what."""
    return request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and caller.server == NAME_SERVER


def host_of(caller: Caller) -> str:
    """The address of a peer without its port."""
    found = caller.attributes.get(_HOST)
    if not isinstance(found, str):
        found = caller.attributes[_HOST] = caller.remote_text.rpartition(":")[0].strip("[]")
    return found
