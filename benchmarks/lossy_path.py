"""A path between two hosts that delays and loses packets, on one machine: two network namespaces, and a relay
between their TUN devices.

The relay sees IP packets, so TCP and UDP are treated alike: each packet is lost by the same probability and
arrives after the same time, whoever sent it. The TCP on both sides is the kernel's. What it does not model:
losses that come in bursts, reordering, queues. Linux; needs root, `ip` and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from pathlib import Path
from types import TracebackType

CLIENT, SERVER = "10.98.0.1", "10.98.0.2"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
_PACKET_BYTES = 65_536
_IDLE_S = 0.5


def reason_not_to_run() -> str | None:
    """Why this machine cannot have such a path, None when it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs Linux and root, for network namespaces"
    if shutil.which("ip") is None:
        return "needs the command `ip` (iproute2)"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    return None


class LossyPath:
    """`with LossyPath(delay_ms=20, loss=0.01) as path: path.start("client", ["python", ...])`.

    delay_ms   one way
    loss       probability of each packet, in both directions
    congestion TCP's congestion control on both sides, such as "cubic"; None: the system's
    """

    def __init__(self, *, delay_ms: float, loss: float, congestion: str | None = None) -> None:
        self._congestion = congestion
        self._names = {"client": f"rmqkit-client-{os.getpid()}", "server": f"rmqkit-server-{os.getpid()}"}
        self._relay_arguments = [str(delay_ms), str(loss)]
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LossyPath:
        devices: list[int] = []
        try:
            for (side, name), address, peer in zip(
                self._names.items(), (CLIENT, SERVER), (SERVER, CLIENT), strict=True
            ):
                device = f"rmq{side[:1]}{os.getpid()}"
                devices.append(_tun(device))
                _ip("netns", "add", name)
                _ip("link", "set", device, "netns", name)
                _ip("-n", name, "addr", "add", address, "peer", peer, "dev", device)
                _ip("-n", name, "link", "set", device, "up")
                _ip("-n", name, "link", "set", "lo", "up")
                if self._congestion is not None:
                    _ip("netns", "exec", name, "sh", "-c", f"echo {self._congestion} > {_CONGESTION}")
            program = [sys.executable, "-m", "benchmarks.lossy_path"]
            command = [*program, *map(str, devices), *self._relay_arguments]
            self._relay = subprocess.Popen(command, pass_fds=devices, cwd=Path(__file__).parent.parent)
        except BaseException:
            self._remove()
            raise
        finally:
            for descriptor in devices:
                os.close(descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._relay is not None:
            self._relay.terminate()
            self._relay.wait()
        self._remove()

    def _remove(self) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def command(self, side: str, words: Sequence[str]) -> list[str]:
        """The command, to be run on that side."""
        return ["ip", "netns", "exec", self._names[side], *words]


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def relay(devices: Sequence[int], delay_s: float, loss: float) -> None:
    """Carry packets between two TUN devices until the process is ended."""
    rng = random.Random(1)
    other = {devices[0]: devices[1], devices[1]: devices[0]}
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heappop(waiting)
            try:
                os.write(target, packet)
            except OSError:
                # The device is full or gone: one more loss.
                continue
        readable, _, _ = select.select(
            devices, [], [], max(waiting[0][0] - time.monotonic(), 0.0) if waiting else _IDLE_S
        )
        for device in readable:
            packet = os.read(device, _PACKET_BYTES)
            if rng.random() >= loss:
                number += 1
                heappush(waiting, (time.monotonic() + delay_s, number, other[device], packet))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="the relay of a LossyPath, given its two devices as open descriptors"
    )
    parser.add_argument("devices", type=int, nargs=2)
    for name in ("delay_ms", "loss"):
        parser.add_argument(name, type=float)
    options = parser.parse_args()
    relay(options.devices, options.delay_ms / 1000, options.loss)


if __name__ == "__main__":
    main()
