"""`rmqkit acl user list|set|delete` and `rmqkit acl policy list|set|delete|explain`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from rmqkit.cli import options
from rmqkit.client import Client
from rmqkit.errors import ConfigError
from rmqkit.model.access import AclInfo, UserInfo
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

#: The variable with the password of a user that is set.
PASSWORD_VARIABLE = "RMQKIT_USER_PASSWORD"
_DENIED = 1
_MAX_PASSWORD_BYTES = 4096


def _arguments(parser: ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    actions = [*_user_arguments(kinds.add_parser("user", help="who may sign requests"))]
    actions += _policy_arguments(kinds.add_parser("policy", help="what users may do"))
    for action in actions:
        options.add_client(action)
        options.add_json(action)
        action.add_argument("--broker", metavar="NAME", help="only at this broker (default: at all)")


def _user_arguments(parser: ArgumentParser) -> Sequence[ArgumentParser]:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all users, without their passwords")
    listing.add_argument(
        "containing", nargs="?", default="", metavar="TEXT", help="only names with this text"
    )
    changing = actions.add_parser("set", help="create a user, or change one")
    changing.add_argument("name")
    where = f"file with the password in its first line, - for standard input (default: {PASSWORD_VARIABLE})"
    changing.add_argument("--password-file", metavar="FILE", help=where)
    kind = "Super may do everything, Normal what policies say (default for a new one)"
    changing.add_argument("--type", choices=("Super", "Normal"), help=kind)
    status = "disable: refuse the requests of the user"
    changing.add_argument("--status", choices=("enable", "disable"), help=status)
    deleting = actions.add_parser("delete", help="delete a user with its policies")
    deleting.add_argument("name")
    _add_yes(deleting)
    return [listing, changing, deleting]


def _policy_arguments(parser: ArgumentParser) -> Sequence[ArgumentParser]:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the policies of users")
    listing.add_argument("user", nargs="?", default="", metavar="USER", help="only users with this text")
    listing.add_argument("--resource", default="", metavar="TEXT", help="only about resources with this text")
    changing = actions.add_parser("set", help="set what a user may do with resources")
    changing.add_argument("user")
    changing.add_argument("actions", metavar="ACTIONS", type=_names, help="joined by commas: Pub,Sub or All")
    resource = "Topic:NAME, Group:NAME, Cluster:NAME, TYPE:BEGINNING*, TYPE:* or *"
    changing.add_argument("resources", nargs="+", metavar="RESOURCE", help=resource)
    changing.add_argument("--deny", action="store_true", help="deny it (default: allow it)")
    source = "only from this address or network, as in 10.0.0.0/8; repeatable"
    changing.add_argument("--source", action="append", default=[], metavar="ADDRESS", help=source)
    default = "a default policy: it holds where no other one matches"
    changing.add_argument("--default", action="store_true", help=default)
    deleting = actions.add_parser("delete", help="delete the policies of a user, or those about one resource")
    deleting.add_argument("user")
    deleting.add_argument("resource", nargs="?", metavar="RESOURCE")
    deleting.add_argument("--default", action="store_true", help="of the default policies")
    _add_yes(deleting)
    explaining = actions.add_parser("explain", help="which rule decides; exit code 1 if the action is denied")
    explaining.add_argument("user")
    explaining.add_argument("asked", metavar="ACTION", help="Pub, Sub, Create, Update, Delete, Get or List")
    explaining.add_argument("resource", metavar="RESOURCE", help="Topic:NAME, Group:NAME or Cluster:NAME")
    explaining.add_argument("--source", default="", metavar="ADDRESS", help="as if from this address")
    return [listing, changing, deleting, explaining]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_yes(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="needed: it cannot be undone")


def _run(arguments: Namespace) -> int:
    if arguments.action == "delete" and not arguments.yes:
        raise ConfigError("nothing was deleted: add --yes, for it cannot be undone")
    return anyio.run(_run_action, arguments, backend="trio")


async def _run_action(arguments: Namespace) -> int:
    async with options.client_of(arguments) as client:
        return int(await _ACTIONS[arguments.kind, arguments.action](client, arguments) or 0)


# Users.


async def _list_users(client: Client, arguments: Namespace) -> None:
    found = await client.access.users(arguments.containing, broker=arguments.broker)
    if arguments.json:
        output.as_json({broker: [_user_dict(user) for user in users] for broker, users in found.items()})
        return
    rows = [
        (user.username, user.user_type, user.user_status, broker)
        for broker, users in found.items()
        for user in users
    ]
    output.table(("USER", "TYPE", "STATUS", "BROKER"), rows)


def _user_dict(user: UserInfo) -> dict[str, Any]:
    return {"user": user.username, "type": user.user_type, "status": user.user_status}


async def _set_user(client: Client, arguments: Namespace) -> None:
    brokers = await client.access.set_user(
        arguments.name,
        password=_password(arguments),
        user_type=arguments.type,
        user_status=arguments.status,
        broker=arguments.broker,
    )
    _report(arguments, "user", arguments.name, "set", brokers)


def _password(arguments: Namespace) -> str | None:
    """The password from a file, standard input or the variable; None to leave it as it is. It is never an
    argument: other users see those."""
    given = arguments.password_file
    if given is None:
        return os.environ.get(PASSWORD_VARIABLE) or None
    text = sys.stdin.read(_MAX_PASSWORD_BYTES) if given == "-" else Path(given).read_text()
    lines = text.splitlines()
    if not lines or not lines[0].strip():
        raise ConfigError(f"--password-file {given}: its first line is blank; write the password there")
    return lines[0].strip()


async def _delete_user(client: Client, arguments: Namespace) -> None:
    brokers = await client.access.delete_user(arguments.name, broker=arguments.broker)
    _report(arguments, "user", arguments.name, "deleted", brokers)


# Policies.


async def _list_policies(client: Client, arguments: Namespace) -> None:
    found = await client.access.policies(arguments.user, arguments.resource, broker=arguments.broker)
    rules = [rule for broker, acls in found.items() for acl in acls for rule in _rules(broker, acl)]
    if arguments.json:
        output.as_json(rules)
        return
    output.table(
        ("USER", "RESOURCE", "ACTIONS", "DECISION", "SOURCES", "POLICY", "BROKER"),
        [
            (
                rule["user"],
                rule["resource"],
                ",".join(rule["actions"]),
                rule["decision"],
                ",".join(rule["sources"]) or "-",
                rule["policy"],
                rule["broker"],
            )
            for rule in rules
        ],
    )


def _rules(broker: str, acl: AclInfo) -> list[dict[str, Any]]:
    return [
        {
            "broker": broker,
            "user": (acl.subject or "").removeprefix("User:"),
            "policy": policy.policy_type,
            "resource": entry.resource,
            "actions": entry.actions or [],
            "sources": entry.source_ips or [],
            "decision": entry.decision,
        }
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]


async def _set_policy(client: Client, arguments: Namespace) -> None:
    brokers = await client.access.set_policy(
        arguments.user,
        arguments.resources,
        arguments.actions,
        decision="Deny" if arguments.deny else "Allow",
        sources=arguments.source,
        policy_type="Default" if arguments.default else "Custom",
        broker=arguments.broker,
    )
    _report(arguments, "policies of", arguments.user, "set", brokers)


async def _delete_policy(client: Client, arguments: Namespace) -> None:
    brokers = await client.access.delete_policy(
        arguments.user,
        arguments.resource,
        policy_type="Default" if arguments.default else None,
        broker=arguments.broker,
    )
    _report(arguments, "policies of", arguments.user, "deleted", brokers)


async def _explain(client: Client, arguments: Namespace) -> int:
    found = await client.access.explain(
        arguments.user, arguments.asked, arguments.resource, source=arguments.source, broker=arguments.broker
    )
    if arguments.json:
        output.as_json(
            [{"broker": each.broker, "allowed": each.is_allowed, "rule": each.rule} for each in found]
        )
    else:
        for each in found:
            output.line(f"{each.broker}: {'allowed' if each.is_allowed else 'denied'}, {each.rule}")
    return 0 if all(each.is_allowed for each in found) else _DENIED


def _report(arguments: Namespace, what: str, name: str, done: str, brokers: list[str]) -> None:
    if arguments.json:
        output.as_json({"user": name, "brokers": brokers})
    else:
        output.line(f"{what} {name} {done} on {', '.join(brokers)}")


_ACTIONS = {
    ("user", "list"): _list_users,
    ("user", "set"): _set_user,
    ("user", "delete"): _delete_user,
    ("policy", "list"): _list_policies,
    ("policy", "set"): _set_policy,
    ("policy", "delete"): _delete_policy,
    ("policy", "explain"): _explain,
}
ACL = Verb("users, and what they may do, at brokers with access control", _arguments, _run)
