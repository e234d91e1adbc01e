#include "engine/picks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Start of the file. Bits [n_layer][words], padded to 8 bytes, and counts [n_layer][n_expert]
 * follow. */
struct picks_head {
    char magic[8];
    uint8_t fingerprint[16];
    uint32_t n_layer, n_expert;
    /* placed: 0 or 1 */
    uint32_t placed, n_host_ffn;
};

/* Returns the bytes of the placement in the file. */
static size_t bits_bytes(const struct picks *k) {
    return round_up((size_t)k->n_layer * ((k->n_expert + 31) / 32) * sizeof(uint32_t), 8);
}

/* Returns the counts in the file: [n_layer][n_expert]. */
static uint64_t *counts_of(const struct picks *k) {
    return (uint64_t *)((uint8_t *)(k->head + 1) + bits_bytes(k));
}

/* Empties the file if it does not belong to this model. Returns 0 or -1. */
static int picks_settle(int fd, const struct picks_head *right, size_t n_bytes) {
    struct picks_head h;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -1;
    if ((uint64_t)st.st_size == n_bytes && pread(fd, &h, sizeof(h), 0) == sizeof(h) &&
        memcmp(&h, right, offsetof(struct picks_head, placed)) == 0)
        return 0;
    if (ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)n_bytes) == 0 &&
        pwrite(fd, right, sizeof(*right), 0) == sizeof(*right))
        return 0;
    return -1;
}

void picks_open(struct picks *k, int fd, const struct gguf *file, const struct model_shape *s) {
    struct picks_head right = {"weftexps", .n_layer = s->n_layer, .n_expert = s->n_expert};

    *k = (struct picks){.n_layer = s->n_layer, .n_expert = s->n_expert};
    if (fd <= 0)
        return;
    size_t n = (size_t)s->n_layer * s->n_expert * sizeof(uint64_t);
    k->n_bytes = sizeof(right) + bits_bytes(k) + n;
    gguf_fingerprint(file, right.fingerprint);
    k->before = malloc(MAX(n, 1));
    k->base = calloc(1, MAX(n, 1));
    k->n_used = s->n_expert_used;
    if (!k->before || !k->base || picks_settle(fd, &right, k->n_bytes) < 0)
        return;
    void *at = mmap(NULL, k->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return;
    k->head = at;
    memcpy(k->before, counts_of(k), n);
}

void picks_close(struct picks *k) {
    if (k->head)
        munmap(k->head, k->n_bytes);
    free(k->before);
    free(k->base);
    *k = (struct picks){0};
}

const uint64_t *picks_counts(const struct picks *k) {
    if (!k->head)
        return NULL;
    return k->before;
}

const uint32_t *picks_placed(const struct picks *k) {
    if (k->head && k->head->placed)
        return (const uint32_t *)(k->head + 1);
    return NULL;
}

void picks_place(struct picks *k, const uint32_t *bits) {
    if (!k->head)
        return;
    memcpy(k->head + 1, bits, (size_t)k->n_layer * ((k->n_expert + 31) / 32) * sizeof(uint32_t));
    k->head->placed = 1;
}

int64_t picks_host_ffn(const struct picks *k) {
    if (!k->head || !k->head->placed)
        return -1;
    return MIN(k->head->n_host_ffn, k->n_layer);
}

void picks_place_ffn(struct picks *k, uint32_t n) {
    if (!k->head)
        return;
    k->head->n_host_ffn = n;
    k->head->placed = 1;
}

/* Returns the number of rows that were counted: that of the layer with the most picks. */
static uint64_t picks_rows(const struct picks *k) {
    uint64_t most = 0;

    for (uint32_t l = 0; l < k->n_layer; l++) {
        uint64_t sum = 0;

        for (uint32_t e = 0; e < k->n_expert; e++)
            sum += counts_of(k)[(size_t)l * k->n_expert + e];
        most = MAX(most, sum);
    }
    return most / k->n_used;
}

void picks_count(struct picks *k, const uint64_t *now) {
    size_t n = 0;

    if (k->head)
        n = (size_t)k->n_layer * k->n_expert;
    assert(n == 0 || k->n_used > 0);
    for (size_t i = 0; i < n; i++)
        counts_of(k)[i] = k->before[i] + now[i] - k->base[i];
    if (n == 0 || picks_rows(k) < 2 * PICKS_HALF_LIFE)
        return;
    for (size_t i = 0; i < n; i++) {
        k->before[i] = counts_of(k)[i] /= 2;
        k->base[i] = now[i];
    }
}
