"""The state of brokers."""

from __future__ import annotations

import msgspec

from rmqkit.client.cluster.broker_views import DispatcherState, broker_states, dispatcher_states
from rmqkit.model.route import KVTable
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import answer
from tests.client.fake_cluster import cluster
from tests.client.fakes import on_both_backends, run


@on_both_backends
def test_a_broker_that_refuses_does_not_hide_the_others(backend: str) -> None:
    """Its error is beside the states of those that answer."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            table = {"compiledPart": "compiled", "dispatchFailures.index": "2"}
            given = msgspec.json.encode(KVTable(table=table))
            code = RequestCode.GET_BROKER_RUNTIME_INFO
            fake.brokers["broker-a"].overrides[code] = lambda command: answer(command, 1, "boom")
            fake.brokers["broker-b"].overrides[code] = lambda command: answer(command, body=given)
            found = await broker_states(client.admin)
        (state,) = found.states
        assert (state.broker, state.code, state.runtime) == ("broker-b", "compiled", table)
        assert state.dispatchers == (DispatcherState("index", failures=2),)
        (error,) = found.errors
        assert "boom" in str(error)

    run(backend, body)


def test_dispatchers_of_run_time_figures() -> None:
    """They are sorted; what a broker does not tell, or tells as no number, is unknown."""
    table = {"dispatchBehindBytes.b": "7", "dispatchUnsavedBytes.b": "x", "dispatchBehindBytes.a": "0"}
    assert dispatcher_states(table) == (
        DispatcherState("a", behind_bytes=0),
        DispatcherState("b", behind_bytes=7),
    )
    assert dispatcher_states({"dispatchBehindBytes": "5"}) == ()
