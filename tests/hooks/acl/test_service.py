"""A slave with the users and policies of its master."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer
from rmqkit.testing.service import ServiceContract
from rmqkit_hook_acl.access import Access
from rmqkit_hook_acl.hook import AccessHook
from rmqkit_hook_acl.model import User
from rmqkit_hook_acl.service import CopyAcl, copy
from tests.hooks.acl.kit import CHECKED, ROOT, policies, signed
from tests.plugins.ha.pair import running_master, running_slave, until


def access_of(broker: RunningBroker) -> Access:
    (found,) = [hook for hook in broker.context.registry.rpc_hooks if isinstance(hook, AccessHook)]
    return found.access


class TestContract(ServiceContract):
    """The service starts, ends and is cancelled like any other."""

    def make_service(self, config: Config) -> Service:
        return CopyAcl()


async def test_a_slave_copies(tmp_path: Path) -> None:
    """What is made at the master is at the slave soon, and stays there without the master; the slave refuses
    changes of its own."""
    async with (
        running_master(tmp_path / "m", **CHECKED) as master,
        running_slave(tmp_path / "s", master, **CHECKED) as slave,
    ):
        users, rules = {"alice": User("alice", "alice-secret")}, {"alice": policies(["Topic:T Pub Allow"])}
        access_of(master).change(users, rules)
        await copy(slave.context, access_of(slave), master.context.address)
        await until(lambda: access_of(slave).file.users == users)
        assert access_of(slave).file.policies == rules
        async with ConnectionPool(connect=dialer("memory")) as pool:
            command = Command(RequestCode.AUTH_DELETE_USER, ext={"username": "alice"})
            answer = await pool.call(str(slave.address), signed(command, *ROOT), 30_000)
        assert "at the master" in (answer.remark or "")
    async with running_slave(tmp_path / "s", master, **CHECKED) as slave:
        assert access_of(slave).file.users == users


async def test_a_stranger_in_place_of_the_master_is_not_believed(tmp_path: Path) -> None:
    """A table whose sender does not know the secret of the brokers changes nothing."""
    other = {
        **CHECKED,
        "innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"other-one"}',
    }
    async with (
        running_master(tmp_path / "m", **other) as stranger,
        running_slave(tmp_path / "s", stranger, **CHECKED) as slave,
    ):
        access_of(stranger).change(
            {"inner": User("inner", "inner-secret", "Super"), "eve": User("eve", "x" * 8)}, {}
        )
        with trio.fail_after(60), pytest.raises(RequestRefused, match="does not prove"):
            await copy(slave.context, access_of(slave), stranger.context.address)
        assert "eve" not in access_of(slave).users
