#pragma once

/*
 * rng - Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a
 * random word as a pure function of a key and a counter, the same on host and device. A small
 * sequential generator (SplitMix64) serves tests and synthetic data.
 */

#include <stdint.h>

#ifdef __CUDACC__
#define RNG_FN __host__ __device__ static inline
#else
#define RNG_FN static inline
#endif

/* A block of 128 random bits. */
struct rng_block {
    uint32_t v[4];
};

/* Returns the 128-bit block of counter (@c0..@c3) under key @seed. */
RNG_FN struct rng_block rng_philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2,
                                   uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    struct rng_block b = {{c0, c1, c2, c3}};
    return b;
}

/* Returns the random words of (seed, choice, output position) for tokens 4 quad .. 4 quad + 3. */
RNG_FN struct rng_block rng_token_block(uint64_t seed, uint32_t choice, uint32_t out_pos,
                                        uint32_t quad) {
    return rng_philox(seed, quad, out_pos, choice, 0x77656674u);
}

/* Returns the random word of (seed, choice, output position, token): docs/design/architecture.md
 * 7. */
RNG_FN uint32_t rng_token_word(uint64_t seed, uint32_t choice, uint32_t out_pos, uint32_t token) {
    return rng_token_block(seed, choice, out_pos, token / 4).v[token % 4];
}

/* State of SplitMix64; every seed is valid. */
struct rng {
    uint64_t state;
};

/* Returns the next 64 random bits. */
static inline uint64_t rng_next(struct rng *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Returns a number that is uniform in [0, n), n > 0 (bias below 2^-32 for small n). */
static inline uint32_t rng_below(struct rng *r, uint32_t n) {
    return (uint32_t)(((rng_next(r) >> 32) * (uint64_t)n) >> 32);
}

/* Returns a number that is uniform in [0, 1). */
static inline double rng_unit(struct rng *r) {
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}
