/* The stored properties of a message, `name 0x01 value 0x02 ...`, with the rules of rmqkit.model.properties. */
#ifndef RMQ_PROPERTIES_H
#define RMQ_PROPERTIES_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* A record with more properties is left to Python, because each name is compared with those before it. */
#define RMQ_MAX_PROPERTIES 64
/* Bytes that may be read and written behind a text. */
#define RMQ_SLACK 16
#define RMQ_MAX_TEXT 32767

typedef struct {
    int32_t name_at, name_bytes, value_at, value_bytes;
} rmq_property;

/* Whether the bytes are UTF-8 as Python decodes it: no overlong form, no surrogate, at most U+10FFFF. */
static int rmq_is_utf8(const uint8_t *p, int32_t n) {
    int32_t i = 0;
    while (i < n) {
        const uint8_t c = p[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        const int more = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
        if (!more || n - i <= more) return 0;
        const uint8_t low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
        const uint8_t high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        if (p[i + 1] < low || p[i + 1] > high) return 0;
        for (int at = 2; at <= more; at++)
            if ((p[i + at] & 0xC0) != 0x80) return 0;
        i += more + 1;
    }
    return 1;
}

/* Cuts a text of at most RMQ_MAX_TEXT bytes, behind which RMQ_SLACK bytes may be read. Returns the number of
 * properties that have name and value; -1 when there are more than RMQ_MAX_PROPERTIES, or when the text is not
 * UTF-8, both of which are left to Python. */
static int rmq_properties(const uint8_t *text, int32_t n, rmq_property *found) {
    int count = 0, other = 0;
    int32_t start = 0, middle = -1;
#define RMQ_MARK(at, is_end)                                                                                   \
    if (is_end) {                                                                                              \
        if (middle > start && (at) > middle + 1) {                                                             \
            if (count == RMQ_MAX_PROPERTIES) return -1;                                                        \
            found[count++] = (rmq_property){start, middle - start, middle + 1, (at)-middle - 1};               \
        }                                                                                                      \
        start = (at) + 1;                                                                                      \
        middle = -1;                                                                                           \
    } else if (middle < 0) {                                                                                   \
        middle = (at);                                                                                         \
    }
#if defined(__SSE2__)
    const __m128i one = _mm_set1_epi8(1), two = _mm_set1_epi8(2);
    for (int32_t block = 0; block < n; block += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(text + block));
        const uint32_t within = n - block >= 16 ? 0xFFFFu : (1u << (n - block)) - 1;
        uint32_t marks = (uint32_t)_mm_movemask_epi8(
            _mm_or_si128(_mm_cmpeq_epi8(bytes, one), _mm_cmpeq_epi8(bytes, two)));
        other |= _mm_movemask_epi8(bytes) & (int)within;
        for (marks &= within; marks; marks &= marks - 1) {
            const int32_t at = block + __builtin_ctz(marks);
            RMQ_MARK(at, text[at] == 2)
        }
    }
#else
    for (int32_t at = 0; at < n; at++) {
        other |= text[at] & 0x80;
        if (text[at] == 1 || text[at] == 2) {
            RMQ_MARK(at, text[at] == 2)
        }
    }
#endif
    RMQ_MARK(n, 1)
#undef RMQ_MARK
    return other && !rmq_is_utf8(text, n) ? -1 : count;
}

static inline int rmq_is_named(const uint8_t *text, const rmq_property *p, const char *name, int32_t bytes) {
    return p->name_bytes == bytes && memcmp(text + p->name_at, name, (size_t)bytes) == 0;
}

/* Whether a name occurs twice. */
static int rmq_has_repeated_name(const uint8_t *text, const rmq_property *found, int count) {
    uint64_t seen = 0;
    for (int i = 0; i < count; i++) {
        const rmq_property *p = found + i;
        const uint8_t *name = text + p->name_at;
        const unsigned mixed = (unsigned)p->name_bytes * 7u + name[0] * 31u + name[p->name_bytes - 1] * 13u;
        const uint64_t bit = (uint64_t)1 << (mixed & 63);
        if (seen & bit)
            for (int j = 0; j < i; j++)
                if (found[j].name_bytes == p->name_bytes &&
                    memcmp(text + found[j].name_at, name, (size_t)p->name_bytes) == 0)
                    return 1;
        seen |= bit;
    }
    return 0;
}

/* Copies `n` bytes, behind which RMQ_SLACK bytes may be read and written. */
static inline void rmq_copy_short(uint8_t *to, const uint8_t *from, int32_t n) {
    memcpy(to, from, RMQ_SLACK);
    if (n > RMQ_SLACK) memcpy(to + RMQ_SLACK, from + RMQ_SLACK, (size_t)n - RMQ_SLACK);
}

#endif
