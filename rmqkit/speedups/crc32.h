/* CRC-32 as zlib's: by carry-less multiplication where the processor has it (V. Gopal and others, "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009), by ARM's instructions where
 * the target has them, else by tables of eight bytes a step. */
#ifndef RMQ_CRC32_H
#define RMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define RMQ_CRC_CLMUL 1
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

static uint32_t rmq_crc_table[8][256];
static int rmq_crc_clmul;

/* Called once, when a module that uses rmq_crc32 is imported. */
static void rmq_crc32_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        rmq_crc_table[0][i] = c;
    }
    for (int i = 0; i < 256; i++)
        for (int step = 1; step < 8; step++) {
            const uint32_t before = rmq_crc_table[step - 1][i];
            rmq_crc_table[step][i] = (before >> 8) ^ rmq_crc_table[0][before & 255];
        }
#ifdef RMQ_CRC_CLMUL
    rmq_crc_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static uint32_t rmq_crc_by_table(uint32_t c, const uint8_t *p, size_t n) {
#if defined(__ARM_FEATURE_CRC32)
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t eight;
        memcpy(&eight, p, 8);
        c = __crc32d(c, eight);
    }
#else
    const uint32_t(*t)[256] = rmq_crc_table;
    for (; n >= 8; p += 8, n -= 8) {
        const uint32_t a = c ^ (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = t[7][a & 255] ^ t[6][(a >> 8) & 255] ^ t[5][(a >> 16) & 255] ^ t[4][a >> 24] ^ t[3][p[4]] ^
            t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
    }
#endif
    while (n--) c = rmq_crc_table[0][(c ^ *p++) & 255] ^ (c >> 8);
    return c;
}

#ifdef RMQ_CRC_CLMUL
/* `n` is a multiple of 16 and at least 64. Constants: powers of x modulo the polynomial, reflected. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t rmq_crc_by_clmul(uint32_t crc, const uint8_t *p,
                                                                           size_t n) {
    const __m128i fold_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i fold_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i fold_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
#define RMQ_AT(at) _mm_loadu_si128((const __m128i *)(p + (at)))
#define RMQ_FOLD(x, by, next)                                                                                 \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next)
    __m128i a = _mm_xor_si128(RMQ_AT(0), _mm_cvtsi32_si128((int)crc));
    __m128i b = RMQ_AT(16), c = RMQ_AT(32), d = RMQ_AT(48), low;
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = RMQ_FOLD(a, fold_64, RMQ_AT(0));
        b = RMQ_FOLD(b, fold_64, RMQ_AT(16));
        c = RMQ_FOLD(c, fold_64, RMQ_AT(32));
        d = RMQ_FOLD(d, fold_64, RMQ_AT(48));
    }
    a = RMQ_FOLD(a, fold_16, b);
    a = RMQ_FOLD(a, fold_16, c);
    a = RMQ_FOLD(a, fold_16, d);
    for (; n >= 16; p += 16, n -= 16) a = RMQ_FOLD(a, fold_16, RMQ_AT(0));
#undef RMQ_AT
#undef RMQ_FOLD
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, fold_16, 0x10));
    low = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), fold_8, 0x00);
    a = _mm_xor_si128(low, _mm_srli_si128(a, 4));
    low = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
    low = _mm_clmulepi64_si128(_mm_and_si128(low, low_words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, low), 1);
}
#endif

static inline uint32_t rmq_crc32(const uint8_t *p, size_t n) {
    uint32_t c = 0xFFFFFFFFu;
#ifdef RMQ_CRC_CLMUL
    if (rmq_crc_clmul && n >= 64) {
        const size_t most = n & ~(size_t)15;
        c = rmq_crc_by_clmul(c, p, most);
        p += most;
        n -= most;
    }
#endif
    return ~rmq_crc_by_table(c, p, n);
}

#endif
