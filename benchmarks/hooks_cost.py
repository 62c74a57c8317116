"""What hooks cost: rmqkit with them beside rmqkit without, under the same load, in turn, in one run.

    python -m benchmarks.hooks_cost                    # five rounds, about eight minutes
    python -m benchmarks.hooks_cost --quick            # does it work?
    python -m benchmarks.hooks_cost --only audit
    python -m benchmarks.hooks_cost --only access   # sends that a user signs, checked or not

Every variant is a server of its own with an empty store. The servers take turns, each while the others are
stopped, and the order of the turns changes from round to round. The figures are ratios to the server without
hooks of the same round: messages a second, and processor time for each message, which suffers less when the
machine is not free.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peers
from benchmarks.code import tell_code
from benchmarks.measuring import run_load, touch_memory
from rmqkit.client import BlockingClient

OFF, ACCESS = "off", "access"
#: Who signs all sends once access control takes part: a user with policies, no super user.
_USER = "bench:bench-password"
_ADMIN, _PASSWORD = "admin", "admin-password"
_METRICS = {"metricsPromExporterPort": "0"}
VARIANTS: dict[str, dict[str, str]] = {
    OFF: {},
    "metrics": {"hooks": "metrics", **_METRICS},
    "audit": {"hooks": "audit"},
    "both": {"hooks": "metrics,audit", **_METRICS},
    "requests": {"hooks": "metrics", "plugins.metrics.rpcLatency": "true", **_METRICS},
    ACCESS: {
        "hooks": "acl",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        # The route that the benchmarks look for before a load and after a pause.
        "authenticationWhitelist": "105",
        "authorizationWhitelist": "105",
        "initAuthenticationUser": f'{{"username":"{_ADMIN}","password":"{_PASSWORD}"}}',
        "innerClientAuthenticationCredentials": f'{{"accessKey":"{_ADMIN}","secretKey":"{_PASSWORD}"}}',
    },
}
#: Fields of a load's report, and whether more is better.
FIGURES = {"messages_per_s": True, "server_cpu_us_per_message": False}
_SEND = ["send", "--topic", "bench", "--size", "1024"]
LOADS = {
    "window": [*_SEND, "--connections", "8", "--in-flight", "32"],
    "batch": [*_SEND, "--connections", "4", "--in-flight", "4", "--batch", "32"],
    "single": [*_SEND, "--connections", "1", "--in-flight", "1"],
    "pull": ["pull", "--topic", "filled", "--passes", "3"],
}
_FILL = ["send", "--topic", "filled", "--connections", "4", "--in-flight", "8", "--size", "1024"]
_GRACE_S = 60.0
#: Load -> variant -> figure -> one value for each round.
Found = dict[str, dict[str, dict[str, list[float]]]]


def measure(names: Sequence[str], rounds: int, seconds: float, fill: int, parent: Path | None) -> Found:
    """All rounds. Raises PeerError when a server ends or a load fails."""
    loads, signed = loads_of(names), _signed(names)
    found: Found = {load: {name: {figure: [] for figure in FIGURES} for name in names} for load in loads}
    with ExitStack() as stack:
        servers = {}
        for name in names:
            servers[name] = stack.enter_context(peers.running("rmqkit", VARIANTS[name], parent))
        for name, server in servers.items():
            with _alone(name, servers):
                if name == ACCESS:
                    _let_in(server)
                _load(server, [*_FILL, *signed, "--messages", str(fill)], seconds)
                _load(server, [*loads["window"], "--seconds", str(seconds / 2)], seconds)
        for number in range(rounds):
            for load, arguments in loads.items():
                for name in list(names)[:: 1 if number % 2 else -1]:
                    touch_memory(seconds)
                    with _alone(name, servers):
                        given = [*arguments, "--seconds", str(seconds)] if load != "pull" else arguments
                        report = _load(servers[name], given, seconds)
                    for figure in FIGURES:
                        found[load][name][figure].append(report[figure])
    return found


def loads_of(names: Sequence[str]) -> dict[str, list[str]]:
    """What is measured: all loads, or beside access control the sends, signed for every variant."""
    signed = _signed(names)
    if not signed:
        return LOADS
    return {load: [*given, *signed] for load, given in LOADS.items() if given[0] == "send"}


def _signed(names: Sequence[str]) -> list[str]:
    return ["--user", _USER] if ACCESS in names else []


def _let_in(server: peers.Server) -> None:
    """Make the user of the loads, who may send to their topics and nothing else."""
    name, _, password = _USER.partition(":")
    with BlockingClient(server.namesrv, access_key=_ADMIN, secret_key=_PASSWORD) as client:
        client.access.set_user(name, password=password)
        client.access.set_policy(name, ["Topic:bench", "Topic:filled"], ["Pub", "Get"])


def _alone(name: str, servers: dict[str, peers.Server]) -> ExitStack:
    """The others are stopped meanwhile."""
    stack = ExitStack()
    for other, server in servers.items():
        if other != name:
            stack.enter_context(server.paused())
    return stack


def _load(server: peers.Server, arguments: Sequence[str], seconds: float) -> dict[str, float]:
    report = run_load(server, arguments, seconds + _GRACE_S)
    if report["errors"]:
        raise peers.PeerError(f"the load failed: {report['first_errors']}")
    return report


def table(found: Found) -> list[str]:
    """A line for each load and variant: the median ratio to `off`, for each figure, so that above 1 is
    better; and the range of the rounds."""
    lines = [f"{'load':6}{'hooks':10}" + "".join(f"{figure:>44}" for figure in FIGURES)]
    for load, variants in found.items():
        for name, figures in variants.items():
            cells = []
            for figure, more_is_better in FIGURES.items():
                pairs = zip(figures[figure], variants[OFF][figure], strict=True)
                ratios = [value / off if more_is_better else off / value for value, off in pairs]
                middle = statistics.median(figures[figure])
                cells.append(
                    f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {middle:.0f}"
                )
            lines.append(f"{load:6}{name:10}" + "".join(f"{cell:>44}" for cell in cells))
    return lines


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What hooks cost, as ratios to rmqkit without hooks.")
    parser.add_argument("--quick", action="store_true", help="one short round: the figures mean nothing")
    others = [name for name in VARIANTS if name != OFF]
    parser.add_argument("--only", help=f"variants besides {OFF}, joined by commas: {', '.join(others)}")
    parser.add_argument("--data", type=Path, help="where data directories are made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load of sends")
    args = parser.parse_args()
    tell_code()
    chosen = [OFF, *(args.only.split(",") if args.only else others)]
    unknown = [name for name in chosen if name not in VARIANTS]
    if unknown:
        parser.error(f"there is no variant {unknown[0]}")
    peers.unwind_on_sigterm()
    rounds, seconds, fill = (1, 0.5, 2_000) if args.quick else (args.rounds, args.seconds, 100_000)
    try:
        found = measure(chosen, rounds, seconds, fill, args.data)
    except peers.PeerError as error:
        print(f"hooks_cost: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
