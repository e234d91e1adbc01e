#include "base/sha256.h"

#include <string.h>
#include "base/util.h"

#if defined(__x86_64__)
#define HAS_X86 1
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && (!defined(__clang__) || defined(__ARM_FEATURE_SHA2))
#define HAS_ARM 1
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* FIPS 180-4, section 6.2. The constants are the first 32 bits of the fractional parts of the cube
 * roots (round) and square roots (initial state) of the first primes. */

static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotate(uint32_t v, unsigned n) {
    return v >> n | v << (32 - n);
}

static void add_block(uint32_t state[8], const uint8_t *p) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4],
                    f = state[5], g = state[6], h = state[7];

    for (int t = 0; t < 16; t++, p += 4)
        w[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int t = 16; t < 64; t++) {
        uint32_t x = w[t - 15], y = w[t - 2];

        w[t] = w[t - 16] + w[t - 7] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) +
               (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
    for (int t = 0; t < 64; t++) {
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                      round_constant[t] + w[t];
        uint32_t t2 =
            (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));

        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void add_plain(uint32_t state[8], const uint8_t *p, size_t n) {
    for (; n > 0; n--, p += 64)
        add_block(state, p);
}

/* ---- with the processor's instructions: four rounds at a time, w[i % 4] is W of them ---- */

#ifdef HAS_X86

/* The instructions take the state as two registers, ABEF and CDGH. */
__attribute__((target("sha,sse4.1"))) static void add_fast(uint32_t state[8], const uint8_t *p,
                                                           size_t n) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(badc, efgh, 8), cdgh = _mm_blend_epi16(efgh, badc, 0xF0);

    for (; n > 0; n--, p += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];

#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i *now = &w[i % 4], before = w[(i + 3) % 4];

            if (i < 4)
                *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)p + i), swap);
            else
                *now =
                    _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(i + 1) % 4]),
                                                       _mm_alignr_epi8(before, w[(i + 2) % 4], 4)),
                                         before);
            __m128i k = _mm_loadu_si128((const __m128i *)(round_constant + 4 * i));
            k = _mm_add_epi32(k, *now);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* __builtin_cpu_supports() knows the instructions in new compilers only. */
static bool is_fast(void) {
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_SHA &&
           __builtin_cpu_supports("sse4.1");
}

#elif defined HAS_ARM

__attribute__((target("+crypto"))) static void add_fast(uint32_t state[8], const uint8_t *p,
                                                        size_t n) {
    uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);

    for (; n > 0; n--, p += 64) {
        const uint32x4_t abcd_before = abcd, efgh_before = efgh;
        uint32x4_t w[4];

#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            uint32x4_t *now = &w[i % 4], abcd_now = abcd;

            if (i < 4)
                *now = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
            else
                *now = vsha256su1q_u32(vsha256su0q_u32(*now, w[(i + 1) % 4]), w[(i + 2) % 4],
                                       w[(i + 3) % 4]);
            uint32x4_t k = vaddq_u32(*now, vld1q_u32(round_constant + 4 * i));
            abcd = vsha256hq_u32(abcd, efgh, k);
            efgh = vsha256h2q_u32(efgh, abcd_now, k);
        }
        abcd = vaddq_u32(abcd, abcd_before);
        efgh = vaddq_u32(efgh, efgh_before);
    }
    vst1q_u32(state, abcd);
    vst1q_u32(state + 4, efgh);
}

static bool is_fast(void) {
    return getauxval(AT_HWCAP) & HWCAP_SHA2;
}

#else
#define add_fast add_plain

static bool is_fast(void) {
    return false;
}
#endif

static void (*add_blocks)(uint32_t state[8], const uint8_t *p, size_t n) = add_plain;

bool sha256_use_fast(bool wanted) {
    bool fast = wanted && is_fast();

    add_blocks = fast ? add_fast : add_plain;
    return fast;
}

__attribute__((constructor)) static void choose(void) {
    sha256_use_fast(true);
}

void sha256_init(struct sha256 *s) {
    *s = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                   0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(struct sha256 *s, const void *data, size_t len) {
    const uint8_t *p = data;
    size_t have = s->n_bytes % 64;

    s->n_bytes += len;
    if (have) {
        size_t n = MIN(64 - have, len);

        memcpy(s->block + have, p, n);
        if (have + n < 64)
            return;
        add_blocks(s->state, s->block, 1);
        p += n, len -= n;
    }
    add_blocks(s->state, p, len / 64);
    if (len % 64)
        memcpy(s->block, p + len / 64 * 64, len % 64);
}

void sha256_end(struct sha256 *s, uint8_t out[32]) {
    uint64_t n_bits = 8 * s->n_bytes;
    uint8_t end[72] = {0x80};
    size_t n = (s->n_bytes % 64 < 56 ? 56 : 120) - s->n_bytes % 64;

    for (int i = 0; i < 8; i++)
        end[n + (size_t)i] = (uint8_t)(n_bits >> (56 - 8 * i));
    sha256_add(s, end, n + 8);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_hex(struct sha256 *s, char out[65]) {
    uint8_t sum[32];

    sha256_end(s, sum);
    hex_write(out, sum, sizeof(sum));
}
