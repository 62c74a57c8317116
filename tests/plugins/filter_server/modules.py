"""Modules of WebAssembly for the tests of filter servers."""

from __future__ import annotations

import wasmtime

#: Pages behind the first one, as many as the message needs.
INPUT = """(func (export "input") (param $size i32) (result i32)
    (drop (memory.grow (i32.div_u (i32.add (local.get $size) (i32.const 65535)) (i32.const 65536))))
    (i32.const 65536))"""
#: Messages whose body has one byte: the size of the body is behind the topic.
SHORT = """(i32.eq (i32.const 1)
    (i32.load (i32.add (i32.add (local.get $at) (i32.const 48)) (i32.load offset=44 (local.get $at)))))"""
ENDLESS = "(loop $again (br $again)) (i32.const 1)"


def module(matches: str = SHORT, *, more: str = "", entry: str = INPUT) -> bytes:
    """A module whose function `matches` has this body."""
    text = f"""(module {more} (memory (export "memory") 1) {entry}
        (func (export "matches") (param $at i32) (param $size i32) (result i32) {matches}))"""
    return assembled(text)


def assembled(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(text))
