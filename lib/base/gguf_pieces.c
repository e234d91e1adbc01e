/*
 * gguf_pieces - reads the list of tensors whose rows lie in files of another format, which
 * gguf_build.c writes:
 *
 *     weft.tensor.names       [n]       names
 *     weft.tensor.types       [n]       enum tensor_type
 *     weft.tensor.dims        [4 n]     dimensions, the unused ones 1
 *     weft.tensor.pieces      [n]       pieces of each tensor
 *     weft.tensor.rows        [n]       rows of a piece
 *     weft.tensor.interleave  [n]       struct tensor.interleave
 *     weft.tensor.halved      [n]       struct tensor.halved
 *     weft.tensor.repack      [9 n]     struct repack; all 0: the pieces are rows
 *     weft.piece.files        [p]       file of each piece
 *     weft.piece.offsets      [p]       offset of each piece in its file
 *
 * The list is checked like the directory of a file: nothing of it can make a reader leave the
 * mapping of a file.
 */

#include <errno.h>
#include <string.h>

#include "base/gguf_private.h"
#include "base/repack.h"
#include "base/try.h"

/* The arrays of the list. */
struct piece_list {
    const struct gguf_array *names, *types, *dims, *pieces, *rows, *interleave, *halved, *repack,
        *files, *offsets;
    /* the first piece of the next tensor */
    uint64_t next;
};

/* Finds array @key, of @n elements unless @n is 0, of numbers or of strings. */
static int pieces_array(const struct gguf *g, const char *key, uint64_t n, bool text,
                        const struct gguf_array **out, struct err *err) {
    const struct gguf_array *a = gguf_array(g, key);

    if (!a || (n && gguf_array_n(a) != n) || (gguf_array_type(a) == GGUF_STRING) != text)
        return err_set(err, 0, NULL, "'%s' is missing or has a wrong length", key);
    *out = a;
    return 0;
}

static int pieces_find(const struct gguf *g, struct piece_list *l, struct err *err) {
    *l = (struct piece_list){0};
    TRY(pieces_array(g, "weft.tensor.names", 0, true, &l->names, err));
    uint64_t n = gguf_array_n(l->names);

    if (n == 0 || n > GGUF_TENSORS_MAX - g->n_tensors)
        return err_set(err, 0, NULL, "%llu tensors; 1 to %u are allowed", (unsigned long long)n,
                       GGUF_TENSORS_MAX);
    TRY(pieces_array(g, "weft.tensor.types", n, false, &l->types, err));
    TRY(pieces_array(g, "weft.tensor.dims", 4 * n, false, &l->dims, err));
    TRY(pieces_array(g, "weft.tensor.pieces", n, false, &l->pieces, err));
    TRY(pieces_array(g, "weft.tensor.rows", n, false, &l->rows, err));
    TRY(pieces_array(g, "weft.tensor.interleave", n, false, &l->interleave, err));
    TRY(pieces_array(g, "weft.tensor.halved", n, false, &l->halved, err));
    TRY(pieces_array(g, "weft.tensor.repack", REPACK_NUMBERS * n, false, &l->repack, err));
    TRY(pieces_array(g, "weft.piece.files", 0, false, &l->files, err));
    return pieces_array(g, "weft.piece.offsets", gguf_array_n(l->files), false, &l->offsets, err);
}

/* Reads element @i of @a; UINT64_MAX if it is no such number. */
static uint64_t pieces_number(const struct gguf_array *a, uint64_t i) {
    uint64_t v;

    if (gguf_array_read(a, GGUF_U64, i, 1, &v) == 1)
        return v;
    return UINT64_MAX;
}

/* Computes the sizes of @t from its dimensions. Returns 0 or -EINVAL. */
static int pieces_shape(struct tensor *t, struct err *err) {
    size_t values = 1;

    for (int d = 0; d < 4; d++)
        if (t->ne[d] < 1 || t->ne[d] > INT64_MAX || size_mul(values, t->ne[d], &values) ||
            values > INT64_MAX)
            return err_set(err, 0, NULL, "tensor '%s' is too large", t->name);
    if (t->ne[0] % t->format->block)
        return err_set(err, 0, NULL, "tensor '%s': rows are no whole blocks", t->name);
    if (size_mul(values / t->format->block, t->format->block_bytes, &t->n_bytes))
        return err_set(err, 0, NULL, "tensor '%s' is too large", t->name);
    t->row_bytes = t->ne[0] / t->format->block * t->format->block_bytes;
    t->n_dims = 4;
    while (t->n_dims > 1 && t->ne[t->n_dims - 1] == 1)
        t->n_dims--;
    return 0;
}

/* Reads how tensor @i is made of parts, if it is. Returns 0, -ENOMEM or -EINVAL. */
static int pieces_repack(struct gguf *g, const struct piece_list *l, uint64_t i, struct tensor *t,
                         uint64_t bytes[REPACK_PARTS], struct err *err) {
    uint32_t number[REPACK_NUMBERS];
    struct repack p;

    if (gguf_array_read(l->repack, GGUF_U32, i * REPACK_NUMBERS, REPACK_NUMBERS, number) !=
        REPACK_NUMBERS)
        return err_set(err, 0, NULL, "'weft.tensor.repack' has a wrong number");
    memcpy(&p, number, sizeof(p));
    bytes[0] = t->piece_rows * t->row_bytes;
    if (p.kind == REPACK_NONE)
        return 0;
    if (repack_sizes(&p, t->piece_rows, t->ne[0], bytes) < 0 ||
        repack_type(&p, t->ne[0]) != t->format->type)
        return err_set(err, 0, NULL, "tensor '%s' cannot be made of such parts", t->name);
    struct repack *own = arena_alloc_array(&g->pieces, 1, sizeof(*own));
    if (!own)
        return -ENOMEM;
    *own = p;
    t->repack = own;
    return 0;
}

/* Finds the addresses of the @n pieces of @t, of @bytes[i % each] bytes. */
static int pieces_places(struct gguf *g, struct piece_list *l, struct tensor *t, uint64_t n,
                         const uint64_t *bytes, uint64_t each, struct err *err) {
    const uint8_t **piece = arena_alloc_array(&g->pieces, n, sizeof(*piece));

    if (!piece)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t file = pieces_number(l->files, l->next + i);
        uint64_t at = pieces_number(l->offsets, l->next + i);

        if (file >= g->n_shards - 1 || at > g->shard[file + 1].size ||
            bytes[i % each] > g->shard[file + 1].size - at)
            return err_set(err, 0, NULL, "tensor '%s' reaches beyond the end of its file", t->name);
        piece[i] = g->shard[file + 1].map + at;
        if (i == 0) {
            t->shard = (uint16_t)(file + 1);
            t->file_offset = at;
        }
    }
    l->next += n;
    if (n == 1 && !t->interleave && !t->repack)
        t->data = piece[0];
    else
        t->piece = piece;
    return 0;
}

/* Reads tensor @i of the list. */
static int pieces_tensor(struct gguf *g, struct piece_list *l, uint64_t i, struct tensor *t,
                         struct err *err) {
    struct gguf_str name = gguf_array_str(l->names, i);
    uint64_t type = pieces_number(l->types, i), n = pieces_number(l->pieces, i);
    uint64_t interleave = pieces_number(l->interleave, i), halved = pieces_number(l->halved, i);
    uint64_t bytes[REPACK_PARTS] = {0};

    t->name = arena_strndup(&g->names, name.data, name.len);
    if (!t->name)
        return -ENOMEM;
    if (gguf_index_find(&g->index, g, name) >= 0)
        return err_set(err, 0, NULL, "tensor '%s' appears twice", t->name);
    t->format = type <= UINT32_MAX ? tensor_format((uint32_t)type) : NULL;
    if (!t->format)
        return err_set(err, 0, NULL, "tensor '%s' has an unknown type", t->name);
    for (uint64_t d = 0; d < 4; d++)
        t->ne[d] = pieces_number(l->dims, 4 * i + d);
    TRY(pieces_shape(t, err));
    uint64_t n_rows = t->n_bytes / t->row_bytes;

    t->piece_rows = pieces_number(l->rows, i);
    if (t->piece_rows < 1 || t->piece_rows > n_rows)
        return err_set(err, 0, NULL, "tensor '%s' has a wrong number of rows", t->name);
    TRY(pieces_repack(g, l, i, t, bytes, err));
    uint64_t each = t->repack ? REPACK_PARTS : 1;
    if (n < 1 || n > gguf_array_n(l->files) - l->next || n % each || n_rows % (n / each) ||
        n_rows / (n / each) != t->piece_rows)
        return err_set(err, 0, NULL, "tensor '%s': %llu pieces do not make %llu rows", t->name,
                       (unsigned long long)n, (unsigned long long)n_rows);
    if (interleave % 2 || interleave > n_rows || (interleave && n_rows % interleave))
        return err_set(err, 0, NULL, "tensor '%s': %llu rows are no heads of %llu", t->name,
                       (unsigned long long)n_rows, (unsigned long long)interleave);
    if (halved % 2 || halved > interleave)
        return err_set(err, 0, NULL, "tensor '%s': heads of %llu rows have no %llu rows to halve",
                       t->name, (unsigned long long)interleave, (unsigned long long)halved);
    t->interleave = (uint32_t)interleave;
    t->halved = (uint32_t)halved;
    return pieces_places(g, l, t, n, bytes, each, err);
}

bool gguf_has_pieces(const struct gguf *g) {
    return gguf_has(g, "weft.tensor.names");
}

int gguf_pieces_parse(struct gguf *g, struct err *err) {
    struct piece_list l;

    TRY(pieces_find(g, &l, err));
    uint32_t n = (uint32_t)gguf_array_n(l.names);

    if (!array_resize(&g->tensor, g->n_tensors + n + 1, sizeof(*g->tensor)))
        return -ENOMEM;
    TRY(gguf_index_reserve(&g->index, g->n_tensors + n));
    for (uint32_t i = 0; i < n; i++) {
        struct tensor *t = &g->tensor[g->n_tensors];

        *t = (struct tensor){0};
        TRY(pieces_tensor(g, &l, i, t, err));
        TRY(gguf_index_add(&g->index, gguf_array_str(l.names, i), g->n_tensors));
        g->n_tensors++;
    }
    return 0;
}
