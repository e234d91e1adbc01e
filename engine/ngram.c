#include "engine/ngram.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

void ngram_tokens(const struct ngram_shape *g, const struct engine_batch *batch,
                  const struct engine_seq *q, uint32_t nth, const float *last, int32_t *out) {
    assert(nth < q->n_rows && g->n <= NGRAM_TOKENS);
    for (uint32_t back = 0; back < g->n; back++) {
        if (back <= nth)
            out[back] = batch->token[q->row0 + nth - back];
        else if (back - nth <= q->pos0)
            out[back] = (int32_t)last[back - nth - 1];
        else
            out[back] = g->eos;
    }
}

/* An end token hides itself and all tokens before it from the hash of later tokens. */
void ngram_rows(const struct ngram_shape *g, const int32_t *token, uint64_t *row) {
    uint64_t hash = (uint64_t)token[0] * g->factor[0];
    bool ended = false;

    for (uint32_t k = 1; k < g->n; k++) {
        ended = ended || token[k] == g->eos;
        hash ^= (uint64_t)(ended ? g->eos : token[k]) * g->factor[k];
        for (uint32_t h = (k - 1) * g->n_head; h < k * g->n_head; h++)
            row[h] = hash % g->size[h] + g->first[h];
    }
}

static off_t ngram_place(const struct tensor *table, uint64_t row) {
    return (off_t)(table->file_offset + row * table->row_bytes);
}

bool ngram_read(const struct gguf *file, const struct tensor *table, uint64_t row, void *bytes) {
    return pread(gguf_shard_fd(file, table->shard), bytes, table->row_bytes,
                 ngram_place(table, row)) == (ssize_t)table->row_bytes;
}

static int by_row(const void *a, const void *b) {
    const struct ngram_find *x = a, *y = b;

    return (x->row > y->row) - (x->row < y->row);
}

/* Copies the row if it is in memory, else has the system begin to fetch it. Returns whether it was
 * copied. */
static bool copy_or_fetch(const struct gguf *file, const struct tensor *table, uint64_t row,
                          void *bytes) {
    int fd = gguf_shard_fd(file, table->shard);
    struct iovec to = {bytes, table->row_bytes};

    if (preadv2(fd, &to, 1, ngram_place(table, row), RWF_NOWAIT) == (ssize_t)table->row_bytes)
        return true;
    posix_fadvise(fd, ngram_place(table, row), (off_t)table->row_bytes, POSIX_FADV_WILLNEED);
    return false;
}

bool ngram_read_all(const struct gguf *file, const struct tensor *table, struct ngram_find *find,
                    size_t n, uint8_t *bytes) {
    size_t size = table->row_bytes;
    bool good = true;

    qsort(find, n, sizeof(*find), by_row);
    for (size_t i = 0; i < n; i++)
        find[i].missed = (i == 0 || find[i].row != find[i - 1].row) &&
                         !copy_or_fetch(file, table, find[i].row, bytes + find[i].to * size);
    for (size_t i = 0; i < n; i++) {
        uint8_t *to = bytes + find[i].to * size;

        if (i > 0 && find[i].row == find[i - 1].row)
            memcpy(to, bytes + find[i - 1].to * size, size);
        else if (find[i].missed)
            good &= ngram_read(file, table, find[i].row, to);
    }
    return good;
}

void ngram_keep(const struct ngram_shape *g, const struct engine_batch *batch,
                const struct engine_seq *q, float *last) {
    int32_t token[NGRAM_TOKENS];

    ngram_tokens(g, batch, q, q->n_rows - 1, last, token);
    for (uint32_t k = 0; k + 1 < g->n; k++)
        last[k] = (float)token[k];
}
