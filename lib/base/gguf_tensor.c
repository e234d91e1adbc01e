#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/gguf_private.h"
#include "base/repack.h"
#include "base/try.h"

/* Returns the name of a type that exists but that weft does not read, for messages. */
static const char *foreign_name(uint32_t type) {
    static const struct {
        uint32_t type;
        const char *name;
    } known[] = {
        {4, "MXFP4 as Ollama's first gpt-oss files number it; take the file from Hugging Face"},
        {9, "Q8_1"},
        {15, "Q8_K"},
        {24, "I8"},
        {25, "I16"},
        {27, "I64"},
        {28, "F64"},
        {41, "Q1_0"},
        {42, "Q2_0"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (known[i].type == type)
            return known[i].name;
    return "unknown";
}

static struct gguf_str gguf_tensor_name(const void *owner, uint32_t i) {
    const char *name = ((const struct gguf *)owner)->tensor[i].name;

    return (struct gguf_str){name, strlen(name)};
}

/* Reads dimensions and type, and computes row_bytes and n_bytes without overflow. Returns 0 or
 * -EINVAL. */
static int parse_shape(struct gguf_cursor *c, struct tensor *t) {
    size_t at = c->at, n_values = 1;
    uint32_t type;

    TRY(gguf_cursor_u32(c, &t->n_dims, "the number of dimensions"));
    if (t->n_dims < 1 || t->n_dims > 4)
        return gguf_cursor_fail_at(c, at, "tensor '%s' has %u dimensions, 1 to 4 are allowed",
                                   t->name, t->n_dims);
    for (uint32_t i = 0; i < 4; i++)
        t->ne[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        at = c->at;
        TRY(gguf_cursor_u64(c, &t->ne[i], "a dimension"));
        if (t->ne[i] < 1 || t->ne[i] > INT64_MAX || size_mul(n_values, t->ne[i], &n_values) ||
            n_values > INT64_MAX)
            return gguf_cursor_fail_at(c, at, "tensor '%s': dimension %u is %llu", t->name, i,
                                       (unsigned long long)t->ne[i]);
    }
    at = c->at;
    TRY(gguf_cursor_u32(c, &type, "the type of a tensor"));
    t->format = tensor_format(type);
    if (!t->format)
        return gguf_cursor_fail_at(c, at,
                                   "tensor '%s' has type %u (%s), which weft does not support",
                                   t->name, type, foreign_name(type));
    if (t->ne[0] % t->format->block)
        return gguf_cursor_fail_at(
            c, at, "tensor '%s': rows of %llu values cannot be divided into %s blocks of %u",
            t->name, (unsigned long long)t->ne[0], t->format->name, t->format->block);
    if (size_mul(n_values / t->format->block, t->format->block_bytes, &t->n_bytes))
        return gguf_cursor_fail_at(c, at, "tensor '%s' is too large", t->name);
    t->row_bytes = t->ne[0] / t->format->block * t->format->block_bytes;
    return 0;
}

/* Reads one entry of the directory. @sum: the offset that its data must have; afterwards the offset
 * of the next tensor. */
static int parse_tensor(struct gguf *g, struct gguf_cursor *c, struct tensor *t, size_t *sum,
                        uint32_t alignment) {
    size_t at = c->at, end;
    struct gguf_str name;
    uint64_t offset;

    TRY(gguf_cursor_name(c, GGUF_NAME_MAX, &name, "a tensor's name"));
    t->name = arena_strndup(&g->names, name.data, name.len);
    if (!t->name)
        return -ENOMEM;
    if (gguf_index_find(&g->index, g, name) >= 0)
        return gguf_cursor_fail_at(c, at, "tensor '%s' appears twice", t->name);
    TRY(parse_shape(c, t));
    at = c->at;
    TRY(gguf_cursor_u64(c, &offset, "the offset of a tensor"));
    if (offset != *sum)
        return gguf_cursor_fail_at(c, at,
                                   "tensor '%s' begins at byte %llu of the data, where byte %zu is "
                                   "expected (tensors follow each other without gaps)",
                                   t->name, (unsigned long long)offset, *sum);
    if (size_add(*sum, t->n_bytes, &end) || end > SIZE_MAX - alignment)
        return gguf_cursor_fail_at(c, at, "tensor '%s' is too large", t->name);
    t->file_offset = offset; /* relative to the data section until the begin of that is known */
    t->shard = (uint16_t)c->shard;
    *sum = round_up(end, alignment);
    return 0;
}

int gguf_tensors_parse(struct gguf *g, struct gguf_cursor *c, uint32_t n, uint32_t alignment) {
    uint32_t first = g->n_tensors;
    struct gguf_shard *shard = &g->shard[c->shard];
    size_t sum = 0;

    if (!array_resize(&g->tensor, first + n + 1, sizeof(*g->tensor)))
        return -ENOMEM;
    g->index.name = gguf_tensor_name;
    TRY(gguf_index_reserve(&g->index, first + n));
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    for (uint32_t i = 0; i < n; i++) {
        struct tensor *t = &g->tensor[g->n_tensors];

        *t = (struct tensor){0};
        TRY(parse_tensor(g, c, t, &sum, alignment));
        TRY(gguf_index_add(&g->index, gguf_tensor_name(g, g->n_tensors), g->n_tensors));
        g->n_tensors++;
    }
    shard->header_end = c->at;
    shard->data_start = round_up(c->at, alignment);
    for (uint32_t i = first; i < g->n_tensors; i++) {
        struct tensor *t = &g->tensor[i];
        size_t end;

        if (size_add(t->file_offset, shard->data_start, &t->file_offset) ||
            size_add(t->file_offset, t->n_bytes, &end) || end > shard->size)
            return gguf_cursor_fail_at(c, shard->size,
                                       "the file ends inside tensor '%s'" GGUF_WHOLE, t->name);
        t->data = shard->map + t->file_offset;
    }
    return 0;
}

uint64_t tensor_order(uint32_t interleave, uint32_t halved, uint64_t r) {
    if (!interleave)
        return r;
    uint64_t i = r % interleave, half = halved / 2;

    if (!halved)
        return r - i + i % 2 * (interleave / 2) + i / 2;
    if (i < half)
        return r + i;
    if (i < halved)
        return r - i + 2 * (i - half) + 1;
    return r;
}

/* Returns the row of the stored matrices that is row @r of the view @t. */
static uint64_t tensor_stored_row(const struct tensor *t, uint64_t r) {
    return tensor_order(t->interleave, t->halved, t->first + r);
}

const uint8_t *tensor_find_row(const struct tensor *t, uint64_t r) {
    assert(!t->repack);
    r = tensor_stored_row(t, r);
    return t->piece[r / t->piece_rows] + r % t->piece_rows * t->row_bytes;
}

const uint8_t *tensor_blocks(const struct tensor *t, uint64_t r, uint64_t first, uint64_t n,
                             uint8_t *room) {
    if (!t->repack)
        return tensor_row(t, r) + first * t->format->block_bytes;
    repack_blocks(t, tensor_stored_row(t, r), first, n, room);
    return room;
}

const uint8_t *tensor_fp8_codes(const struct tensor *t, uint64_t r, uint64_t k, float *scale) {
    return repack_fp8_codes(t, tensor_stored_row(t, r), k, scale);
}

const uint8_t *tensor_range(const struct tensor *t, uint64_t i, size_t *n) {
    uint64_t n_rows = t->n_bytes / t->row_bytes, each = t->repack ? REPACK_PARTS : 1;
    uint64_t bytes[REPACK_PARTS] = {t->piece_rows * t->row_bytes};

    if (!t->piece) {
        *n = t->n_bytes;
        if (i != 0)
            return NULL;
        return t->data;
    }
    uint64_t begin = t->first / t->piece_rows * each;
    uint64_t end = ((t->first + n_rows - 1) / t->piece_rows + 1) * each;
    if (begin + i >= end)
        return NULL;
    if (t->repack)
        (void)repack_sizes(t->repack, t->piece_rows, t->ne[0], bytes);
    *n = bytes[i % each];
    return t->piece[begin + i];
}

void tensor_copy_rows(const struct tensor *t, uint64_t first, uint64_t n, void *out) {
    uint8_t *to = out;

    if (!t->piece) {
        memcpy(to, t->data + first * t->row_bytes, n * t->row_bytes);
        return;
    }
    for (uint64_t r = first; r < first + n; r++, to += t->row_bytes) {
        const uint8_t *row = tensor_blocks(t, r, 0, t->ne[0] / t->format->block, to);

        if (row != to)
            memcpy(to, row, t->row_bytes);
    }
}

void tensor_skip_rows(struct tensor *t, uint64_t n) {
    if (t->piece)
        t->first += n;
    else
        t->data += n * t->row_bytes;
}

uint64_t gguf_n_tensors(const struct gguf *g) {
    return g->n_tensors;
}

const struct tensor *gguf_tensor(const struct gguf *g, uint64_t i) {
    assert(i < g->n_tensors);
    return &g->tensor[i];
}

const struct tensor *gguf_find(const struct gguf *g, const char *name) {
    int64_t i = gguf_index_find(&g->index, g, (struct gguf_str){name, strlen(name)});

    if (i < 0)
        return NULL;
    return &g->tensor[i];
}
