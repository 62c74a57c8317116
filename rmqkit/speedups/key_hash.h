/* Hashes of keys: Java's hash of a text, over the characters of a Python string as UTF-16 units. */
#ifndef RMQ_KEY_HASH_H
#define RMQ_KEY_HASH_H

#include <stddef.h>
#include <stdint.h>

/* As `rmqkit.protocol.tags.absolute_hash`. */
static inline uint32_t rmq_absolute_hash(uint32_t code) {
    if (code < 0x80000000u) return code;
    return code == 0x80000000u ? 0 : 0u - code;
}

/* The character at a place of a text whose characters have `kind` bytes each. */
static inline uint32_t rmq_char_at(int kind, const void *data, ptrdiff_t at) {
    if (kind == 1) return ((const uint8_t *)data)[at];
    if (kind == 2) return ((const uint16_t *)data)[at];
    return ((const uint32_t *)data)[at];
}

/* As `rmqkit.protocol.tags.extend_hash`, with the characters from `at` up to `end`. */
static inline uint32_t rmq_extend_hash(uint32_t code, int kind, const void *data, ptrdiff_t at, ptrdiff_t end) {
    if (kind == 1) {
        const uint8_t *units = (const uint8_t *)data;
        /* Four units a step, so that the multiplications do not wait for each other. */
        for (; end - at >= 4; at += 4)
            code = code * 923521u + units[at] * 29791u + units[at + 1] * 961u + units[at + 2] * 31u + units[at + 3];
        for (; at < end; at++) code = code * 31u + units[at];
        return code;
    }
    for (; at < end; at++) {
        uint32_t unit = rmq_char_at(kind, data, at);
        if (unit >= 0x10000u) {
            unit -= 0x10000u;
            code = code * 31u + (0xD800u | unit >> 10);
            unit = 0xDC00u | (unit & 0x3FFu);
        }
        code = code * 31u + unit;
    }
    return code;
}

#endif
