"""Filters that consumers send, as modules of WebAssembly.

A module sees the messages that it is given and nothing else: it may import nothing, so that it has no files,
no network and no clock. Its memory, the instructions for a message and the time for the messages of a window
are bounded. It exports

    memory                                   one
    input(size: i32) -> i32                  the address of a buffer of at least so many bytes, for messages
                                             until `input` is called again, which a larger message causes
    matches(address: i32, size: i32) -> i32  not 0 when the message there, of so many bytes, matches

and gets messages in the form of `encoded`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct
from typing import Any

import trio
from attrs import frozen

from rmqkit.errors import DecodeError, MissingExtra, RequestRefused
from rmqkit.limits import MAX_FILTER_THREADS
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.record import unpack
from rmqkit_filter_server.limits import MAX_FILTER_MODULE_TABLE

_log = logging.getLogger(__name__)
MAGIC = b"\0asm"
_HEAD = Struct("<qqqiiiiI")
_SIZE = Struct("<I")
_MIB = 1024 * 1024
#: Export -> its parameters and its results.
_FUNCTIONS = {"input": (["i32"], ["i32"]), "matches": (["i32", "i32"], ["i32"])}


@frozen
class ModuleLimits:
    """What modules may use.

    max_bytes   size of a module
    memory_mib  size of its memory
    fuel        for one message, and for a module's start: about the number of its instructions
    timeout_ms  for the messages of one window
    """

    max_bytes: int
    memory_mib: int
    fuel: int
    timeout_ms: int


def encoded(message: StoredMessage) -> bytes:
    """A message for modules. All numbers are little-endian; a text is UTF-8.

    queue offset i64 | born time i64, ms | store time i64, ms | queue id i32 |
    deliveries before this one i32 | flag i32 | system flag i32 (bit 0: the body is compressed) |
    number of properties u32 | topic | body | for each property: name | value

    Topic, body, names and values are u32 size | bytes.
    """
    texts = [message.topic.encode(errors="replace"), message.body]
    for pair in message.properties.items():
        texts += [part.encode(errors="replace") for part in pair]
    parts = [
        _HEAD.pack(
            message.queue_offset,
            message.born_timestamp_ms,
            message.store_timestamp_ms,
            message.queue_id,
            message.reconsume_times,
            message.flag,
            message.sys_flag,
            len(message.properties),
        )
    ]
    for text in texts:
        parts += [_SIZE.pack(len(text)), text]
    return b"".join(parts)


class ModuleRefused(ValueError):
    """A module is not used, for a reason that its sender can mend."""


class ModuleFilter:
    """The filter of one uploaded module.

    A module that traps, uses up its fuel or its time is disabled: it is logged once, and consumers are
    refused with SYSTEM_ERROR and the reason, until its group sends another module.
    """

    def __init__(self, title: str, source: bytes, limits: ModuleLimits) -> None:
        """Compiles the module and starts it; takes milliseconds to seconds, so call it in a thread. Raises
        ModuleRefused."""
        import wasmtime

        self._title = title
        self._limits = limits
        self._disabled = ""
        self._room = 0
        self._address = 0
        # One thread at a time: a module has one memory.
        self._turn = trio.Lock()
        self._failures = wasmtime.Trap, wasmtime.WasmtimeError, IndexError
        self._engine = wasmtime.Engine(_settings())
        self._store = wasmtime.Store(self._engine)
        self._store.set_limits(
            memory_size=limits.memory_mib * _MIB,
            instances=1,
            memories=1,
            tables=1,
            table_elements=MAX_FILTER_MODULE_TABLE,
        )
        self._store.set_epoch_deadline(1)
        self._store.set_fuel(limits.fuel)
        try:
            module = wasmtime.Module(self._engine, source)
            _check(module)
            exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise ModuleRefused(_reason(error)) from None
        self._memory: Any = exports["memory"]
        self._input: Any = exports["input"]
        self._matches: Any = exports["matches"]

    def compiled(self, threads: trio.CapacityLimiter) -> CompiledFilter:
        """The filter, whose calls run in threads."""

        async def matches(records: Sequence[Buffer]) -> Sequence[bool]:
            # A cancelled caller waits for the thread as well, at most for the time-out: another call must not
            # use the memory meanwhile.
            found: Sequence[bool] = ()
            with trio.CancelScope(shield=True):
                async with self._turn:
                    found = await self._windowed([bytes(record) for record in records], threads)
            return found

        return CompiledFilter(records_async=matches)

    async def _windowed(self, records: Sequence[bytes], threads: trio.CapacityLimiter) -> Sequence[bool]:
        """The verdicts on the records of one window, in a thread. Raises RequestRefused."""
        if self._disabled:
            raise self._refusal()
        late = False

        async def interrupt() -> None:
            nonlocal late
            await trio.sleep(self._limits.timeout_ms / 1000)
            late = True
            self._engine.increment_epoch()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            failure = None
            try:
                found = await trio.to_thread.run_sync(self._verdicts, records, limiter=threads)
            except self._failures as error:
                failure = _reason(error)
            nursery.cancel_scope.cancel()
        if late:
            failure = f"it took more than {self._limits.timeout_ms} ms for {len(records)} messages"
        if failure is not None:
            self._disabled = failure
            _log.error("%s is disabled until another module is sent: %s", self._title, failure)
            raise self._refusal()
        return found

    def _refusal(self) -> RequestRefused:
        return RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"{self._title} is disabled until another module is sent: {self._disabled}",
        )

    def _verdicts(self, records: Sequence[bytes]) -> list[bool]:
        """A damaged record does not match. Raises the errors of `_failures`."""
        store, found = self._store, []
        for record in records:
            try:
                data = encoded(unpack(record))
            except DecodeError:
                found.append(False)
                continue
            store.set_fuel(self._limits.fuel)
            if len(data) > self._room:
                self._address = self._input(store, len(data)) & 0xFFFFFFFF
                self._room = len(data)
            self._memory.write(store, data, self._address)
            found.append(self._matches(store, self._address, len(data)) != 0)
        return found


class FilterModules:
    """Turns uploads into filters, one after the other.

    Raises MissingExtra when the package `wasmtime` is not installed.
    """

    def __init__(self, limits: ModuleLimits) -> None:
        try:
            import wasmtime  # noqa: F401 - the error comes at the start, not at the first upload
        except ImportError:
            raise MissingExtra("webAssembly = true needs the package wasmtime", "wasm") from None
        self._limits = limits
        self._compiling = trio.CapacityLimiter(1)
        self._threads = trio.CapacityLimiter(MAX_FILTER_THREADS)

    def check(self, source: bytes) -> None:
        """Check size and beginning of a module. Raises ModuleRefused for what cannot be a module, before any
        work is done."""
        if not source.startswith(MAGIC):
            raise ModuleRefused("it is not a module of WebAssembly, and no other code of consumers is run")
        if len(source) > self._limits.max_bytes:
            raise ModuleRefused(
                f"the module has {len(source)} bytes, at most {self._limits.max_bytes} are allowed"
                " (webAssemblyMaxBytes)"
            )

    async def compile(self, title: str, source: bytes) -> CompiledFilter:
        """Compile a module in a thread. Raises ModuleRefused. Cancelled: waits until a compilation that has
        begun has ended."""
        made = await trio.to_thread.run_sync(
            ModuleFilter, title, source, self._limits, limiter=self._compiling
        )
        return made.compiled(self._threads)


def _settings() -> Any:
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.parallel_compilation = False
    config.wasm_threads = False
    config.wasm_memory64 = False
    config.wasm_multi_memory = False
    return config


def _check(module: Any) -> None:
    """Check the imports and exports of a compiled module. Raises ModuleRefused unless it is a filter."""
    import wasmtime

    if module.imports:
        first = module.imports[0]
        raise ModuleRefused(f"it imports {first.module}.{first.name}; a filter imports nothing"[:300])
    exports = {each.name: each.type for each in module.exports}
    if not isinstance(exports.get("memory"), wasmtime.MemoryType):
        raise ModuleRefused("it does not export its memory as `memory`")
    for name, (parameters, results) in _FUNCTIONS.items():
        kind = exports.get(name)
        if (
            not isinstance(kind, wasmtime.FuncType)
            or [str(each) for each in kind.params] != parameters
            or [str(each) for each in kind.results] != results
        ):
            raise ModuleRefused(
                f"it does not export the function {name}({', '.join(parameters)}) -> {', '.join(results)}"
            )


def _reason(error: Exception) -> str:
    """What wasmtime says, in one line without its backtrace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


__all__ = ["MAGIC", "FilterModules", "ModuleFilter", "ModuleLimits", "ModuleRefused", "encoded"]
