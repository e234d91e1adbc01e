/*
 * gguf_fingerprint - computes 128 bits that distinguish model files from the size and header of
 * every shard, samples of its data, and the values that the operator has replaced. Page keys and
 * the handshake of the two processes contain it. It does not resist an adversary who may write the
 * model file and could change the answers anyway, but accidental differences, other quantisations
 * and other fine-tunes of a model have other fingerprints.
 *
 * The data is read with pread() and not through the mapping, so that a file that shrinks meanwhile
 * causes no signal.
 */

#include <endian.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf_private.h"

#define PIECE 65536u
#define N_SAMPLES 64u /* pieces of a shard's data; smaller data is read whole */

/* State of the hash after the bytes so far. */
struct mix {
    uint64_t a, b;
};

static uint64_t gguf_fingerprint_fold(uint64_t x, uint64_t y) {
    __extension__ unsigned __int128 p = (unsigned __int128)x * y;

    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Mixes @w into two lanes with different multipliers, each fed by the other, so that a collision of
 * 64 bits in one lane is no collision of both. */
static void mix_word(struct mix *m, uint64_t w) {
    uint64_t a = gguf_fingerprint_fold(m->a ^ w, 0xA0761D6478BD642Fu) + m->b;

    m->b = gguf_fingerprint_fold(m->b + w, 0xE7037ED1A0B428DBu) ^ a;
    m->a = a + 0x9E3779B97F4A7C15u;
}

static void mix_bytes(struct mix *m, const uint8_t *p, size_t n) {
    mix_word(m, n);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w = 0;

        memcpy(&w, p + i, MIN(n - i, 8u));
        mix_word(m, le64toh(w));
    }
}

/* Mixes in bytes [at, at + len) of the file; bytes that cannot be read are left out. */
static void mix_range(struct mix *m, int fd, uint64_t at, uint64_t len) {
    uint8_t buf[PIECE];

    while (len > 0) {
        ssize_t n = pread(fd, buf, MIN(len, sizeof(buf)), (off_t)at);

        if (n <= 0)
            return;
        mix_bytes(m, buf, (size_t)n);
        at += (uint64_t)n;
        len -= (uint64_t)n;
    }
}

/* Mixes in the values that are not those of the file. */
static void mix_overrides(struct mix *m, const struct gguf_meta *meta) {
    for (uint32_t i = 0; i < meta->n; i++) {
        const struct gguf_kv *kv = &meta->kv[i];

        if (!kv->overridden)
            continue;
        mix_bytes(m, (const uint8_t *)kv->key.data, kv->key.len);
        mix_word(m, kv->type);
        if (kv->value)
            mix_bytes(m, kv->value, gguf_scalar_bytes(kv->type));
        else
            mix_bytes(m, (const uint8_t *)kv->str.data, kv->str.len);
    }
}

void gguf_fingerprint(const struct gguf *g, uint8_t out[16]) {
    struct mix m = {0x77656674u, g->n_shards};

    for (uint32_t i = 0; i < g->n_shards; i++) {
        const struct gguf_shard *s = &g->shard[i];

        mix_word(&m, s->size);
        mix_range(&m, s->fd, 0, s->header_end);
        if (s->data_start >= s->size)
            continue;
        uint64_t data = s->size - s->data_start;

        if (data <= (uint64_t)N_SAMPLES * PIECE) {
            mix_range(&m, s->fd, s->data_start, data);
            continue;
        }
        for (uint32_t k = 0; k < N_SAMPLES; k++) /* the first and the last piece included */
            mix_range(&m, s->fd, s->data_start + (data - PIECE) / (N_SAMPLES - 1) * k, PIECE);
    }
    mix_overrides(&m, &g->meta);
    for (int i = 0; i < 4; i++)
        mix_word(&m, 0);
    m.a = htole64(m.a);
    m.b = htole64(m.b);
    memcpy(out, &m.a, 8);
    memcpy(out + 8, &m.b, 8);
}
