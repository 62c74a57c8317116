"""Compression and decompression of bodies without holding up the event loop."""

from __future__ import annotations

from collections.abc import Callable

import anyio.to_thread

#: Longer bodies are converted in a worker thread; for shorter ones starting a thread costs more.
THREAD_OVER_BYTES = 65_536


async def converted(convert: Callable[[bytes, int], bytes], body: bytes, argument: int) -> bytes:
    """`convert(body, argument)`, in a worker thread if the body is long. Raises what `convert` raises. When
    cancelled, the thread finishes and its result is dropped."""
    if len(body) > THREAD_OVER_BYTES:
        return await anyio.to_thread.run_sync(convert, body, argument, abandon_on_cancel=True)
    return convert(body, argument)
