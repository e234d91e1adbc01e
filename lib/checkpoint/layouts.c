/*
 * layouts - tensors that checkpoints store together and GGUF apart, or in another order of rows.
 *
 * Such a tensor consists of equal groups of rows (the experts, or the key heads), and each group of
 * parts. A tensor of GGUF is a list of parts, each taken from all groups: it stays in the file, as
 * pieces of rows. Only the keys' half of latent attention is turned, which needs a copy.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mathx.h"
#include "base/try.h"
#include "checkpoint/reader.h"

/* Rows [from, from + n) of each group. */
struct layout_part {
    uint64_t from, n;
};

/* A tensor of GGUF that is made of @n parts. stacked: the groups are its third dimension. */
struct layout_target {
    const char *name;
    bool stacked;
    uint32_t n;
    struct layout_part part[3];
};

/* A tensor of a checkpoint as groups of rows. */
struct layout_rows {
    const struct st_tensor *t;
    enum tensor_type type;
    uint32_t layer;
    uint64_t n_groups, n_each, n_columns;
};

static int layout_bad(const struct reader *r, const struct st_tensor *t) {
    return err_set(r->err, 0, NULL, "%s: tensor '%s' has another shape than config.json says",
                   r->file[t->file].name, t->name);
}

/* Finds the rows of @t in @n_groups groups of @n_each rows; 0: as many as the shape says. */
static int layout_rows(const struct reader *r, const struct st_tensor *t, uint64_t n_groups,
                       uint64_t n_each, struct layout_rows *out) {
    uint64_t n = 1;

    if (t->n_dims < 2 || t->n_dims > 3)
        return layout_bad(r, t);
    for (uint32_t d = 0; d + 1 < t->n_dims; d++)
        if (t->dim[d] == 0 || __builtin_mul_overflow(n, t->dim[d], &n))
            return layout_bad(r, t);
    if (t->n_dims == 3 && n_groups == 0) {
        n_groups = t->dim[0];
        n_each = t->dim[1];
    }
    if (n_groups == 0 || n_each == 0 || n % n_groups || n / n_groups != n_each ||
        t->dim[t->n_dims - 1] == 0)
        return layout_bad(r, t);
    out->n_groups = n_groups;
    out->n_each = n_each;
    out->n_columns = t->dim[t->n_dims - 1];
    return 0;
}

static void layout_name(char out[64], const char *pattern, uint32_t layer) {
    const char *at = strchr(pattern, '#');

    snprintf(out, 64, "%.*s%u%s", (int)(at - pattern), pattern, layer, at + 1);
}

/* Returns the most rows that divide all parts and their places. */
static uint64_t layout_piece_rows(const struct layout_target *to) {
    uint64_t a = 0;

    for (uint32_t i = 0; i < to->n; i++)
        for (uint64_t b = to->part[i].n, rest; b; b = rest) {
            rest = a % b;
            a = b;
        }
    return a;
}

/* Adds the tensor @to, which stays in the file. */
static int layout_add(struct reader *r, const struct layout_rows *rows,
                      const struct layout_target *to) {
    struct gguf_built b = {.type = rows->type, .n_dims = 2};
    uint64_t n_rows = 0, piece_rows = layout_piece_rows(to), k = 0;
    uint64_t row_bytes = rows->n_columns * st_type_bytes(rows->t->type);

    layout_name(b.name, to->name, rows->layer);
    for (uint32_t i = 0; i < to->n; i++)
        n_rows += to->part[i].n;
    b.piece_rows = piece_rows;
    b.ne[0] = rows->n_columns;
    b.ne[1] = to->stacked ? n_rows : n_rows * rows->n_groups;
    b.ne[2] = to->stacked ? rows->n_groups : 1;
    b.ne[3] = 1;
    b.n_dims = to->stacked ? 3 : 2;
    uint64_t n_pieces = n_rows / piece_rows * rows->n_groups;
    if (n_pieces > 1 << 20)
        return layout_bad(r, rows->t);
    CLEANUP(freep) struct gguf_piece *piece = calloc(n_pieces, sizeof(*piece));
    if (!piece)
        return -ENOMEM;
    for (uint32_t i = 0; i < to->n; i++)
        for (uint64_t g = 0; g < rows->n_groups; g++)
            for (uint64_t at = 0; at < to->part[i].n; at += piece_rows) {
                uint64_t row = g * rows->n_each + to->part[i].from + at;

                piece[k++] = (struct gguf_piece){rows->t->file, rows->t->offset + row * row_bytes};
            }
    return gguf_build_scattered(&r->build, &b, piece, (uint32_t)k);
}

/* Experts' gate and up projections: [experts][gate rows, up rows][columns]. */
static int layout_gate_up(struct reader *r, struct layout_rows *rows) {
    TRY(layout_rows(r, rows->t, 0, 0, rows));
    uint64_t half = rows->n_each / 2;
    const struct layout_target gate = {"blk.#.ffn_gate_exps.weight", true, 1, {{0, half}}};
    const struct layout_target up = {"blk.#.ffn_up_exps.weight", true, 1, {{half, half}}};

    if (rows->t->n_dims != 3 || rows->n_each % 2)
        return layout_bad(r, rows->t);
    TRY(layout_add(r, rows, &gate));
    return layout_add(r, rows, &up);
}

/* The gate and up projections of one expert that all tokens use. */
static int layout_shared_gate_up(struct reader *r, struct layout_rows *rows) {
    TRY(layout_rows(r, rows->t, 1, rows->t->dim[0], rows));
    uint64_t half = rows->n_each / 2;
    const struct layout_target gate = {"blk.#.ffn_gate_shexp.weight", false, 1, {{0, half}}};
    const struct layout_target up = {"blk.#.ffn_up_shexp.weight", false, 1, {{half, half}}};

    if (rows->n_each % 2)
        return layout_bad(r, rows->t);
    TRY(layout_add(r, rows, &gate));
    return layout_add(r, rows, &up);
}

/* Qwen3-Next: rows of a key head's q, k, and of the v and z of its value heads. GGUF has all q, all
 * k, all v, and z apart. */
static int layout_qkvz(struct reader *r, struct layout_rows *rows) {
    double keys = reader_number(r, "linear_num_key_heads");
    double key_dim = reader_number(r, "linear_key_head_dim");
    double values = reader_number(r, "linear_num_value_heads");
    double value_dim = reader_number(r, "linear_value_head_dim");

    if (!(keys >= 1 && keys <= 4096 && key_dim >= 1 && key_dim <= 4096 && values >= keys &&
          values <= 4096 && value_dim >= 1 && value_dim <= 4096 && fmod(values, keys) == 0))
        return layout_bad(r, rows->t);
    uint64_t k = (uint64_t)key_dim, v = (uint64_t)values / (uint64_t)keys * (uint64_t)value_dim;
    TRY(layout_rows(r, rows->t, (uint64_t)keys, 2 * k + 2 * v, rows));
    const struct layout_target qkv = {
        "blk.#.attn_qkv.weight", false, 3, {{0, k}, {k, k}, {2 * k, v}}};
    const struct layout_target z = {"blk.#.attn_gate.weight", false, 1, {{2 * k + v, v}}};

    TRY(layout_add(r, rows, &qkv));
    return layout_add(r, rows, &z);
}

/* Writes the first @n rows of each group to @to, turned: [groups][columns][rows]. */
static int layout_turn(const struct reader *r, const struct layout_rows *rows, uint64_t n,
                       uint8_t *to) {
    size_t size = st_type_bytes(rows->t->type), row_bytes = rows->n_columns * size;
    CLEANUP(freep) uint8_t *row = malloc(row_bytes);

    if (!row)
        return -ENOMEM;
    for (uint64_t g = 0; g < rows->n_groups; g++)
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = rows->t->offset + (g * rows->n_each + i) * row_bytes;

            if (pread(r->file[rows->t->file].fd, row, row_bytes, (off_t)at) != (ssize_t)row_bytes)
                return err_set(r->err, 0, NULL, "%s: cannot read tensor '%s'",
                               r->file[rows->t->file].name, rows->t->name);
            for (uint64_t c = 0; c < rows->n_columns; c++)
                memcpy(to + ((g * rows->n_columns + c) * n + i) * size, row + c * size, size);
        }
    return 0;
}

/* Latent attention: rows of a head's keys and values. The engine multiplies queries by the keys'
 * matrix, which is turned for it. */
static int layout_kv_b(struct reader *r, struct layout_rows *rows) {
    double nope = reader_number(r, "qk_nope_head_dim"), value = reader_number(r, "v_head_dim");
    struct gguf_built b = {.type = rows->type, .n_dims = 3};
    uint8_t *to;

    if (!(nope >= 1 && nope <= 4096 && value >= 1 && value <= 4096))
        return layout_bad(r, rows->t);
    uint64_t k = (uint64_t)nope, v = (uint64_t)value;
    TRY(layout_rows(r, rows->t, r->n_head, k + v, rows));
    const struct layout_target values = {"blk.#.attn_v_b.weight", true, 1, {{k, v}}};

    TRY(layout_add(r, rows, &values));
    layout_name(b.name, "blk.#.attn_k_b.weight", rows->layer);
    b.ne[0] = k;
    b.ne[1] = rows->n_columns;
    b.ne[2] = rows->n_groups;
    b.ne[3] = 1;
    size_t bytes = k * rows->n_columns * rows->n_groups * st_type_bytes(rows->t->type);
    TRY(gguf_build_tensor(&r->build, &b, bytes, &to));
    return layout_turn(r, rows, k, to);
}

/* Finds the scales beside the blocks @t, of [experts, rows, groups]: a scale for each block. */
static int layout_scales(const struct reader *r, const struct st_tensor *t,
                         const struct st_tensor **out) {
    char name[ST_NAME_MAX + 1];
    const struct st_tensor *s;
    int base = (int)(strlen(t->name) - strlen("_blocks"));
    bool fits = t->type == ST_U8 && t->n_dims == 4 && t->dim[3] == 16;

    snprintf(name, sizeof(name), "%.*s_scales", base, t->name);
    s = st_find(&r->list, name);
    if (!s)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has no '%s'", r->file[t->file].name,
                       t->name, name);
    fits = fits && s->type == ST_U8 && s->n_dims == 3;
    for (uint32_t d = 0; d < 3 && fits; d++)
        fits = t->dim[d] == s->dim[d] && t->dim[d] > 0 && t->dim[d] <= 1 << 24;
    if (!fits)
        return err_set(r->err, 0, NULL, "%s: tensors '%s' and '%s' do not fit each other",
                       r->file[t->file].name, t->name, name);
    *out = s;
    return 0;
}

/* Adds tensor @name, the rows @from, @from + 1 + @skip, ... of each expert's blocks @t. */
static int layout_blocks(struct reader *r, const struct st_tensor *t,
                         const struct st_tensor *scales, const char *name, uint32_t layer,
                         uint32_t from, uint32_t skip) {
    uint64_t n_experts = t->dim[0], n_rows = t->dim[1], groups = t->dim[2];
    struct gguf_built b = {.type = TENSOR_MXFP4, .n_dims = 3};

    layout_name(b.name, name, layer);
    b.repack = (struct repack){.kind = REPACK_MXFP4,
                               .bits = 4,
                               .group = 1,
                               .group_rows = 1,
                               .scale_type = TENSOR_F32,
                               .skip = skip};
    b.ne[0] = 32 * groups;
    b.ne[1] = b.piece_rows = n_rows / (1 + skip);
    b.ne[2] = n_experts;
    b.ne[3] = 1;
    if (n_rows % (1 + skip) || n_experts > 1 << 16)
        return layout_bad(r, t);
    CLEANUP(freep) struct gguf_piece *piece = calloc(n_experts, REPACK_PARTS * sizeof(*piece));
    if (!piece)
        return -ENOMEM;
    for (uint64_t e = 0; e < n_experts; e++) {
        struct gguf_piece *part = &piece[e * REPACK_PARTS];
        uint64_t block = (e * n_rows + from) * groups;

        part[REPACK_CODES] = (struct gguf_piece){t->file, t->offset + 16 * block};
        part[REPACK_SCALES] = (struct gguf_piece){scales->file, scales->offset + block};
    }
    return gguf_build_scattered(&r->build, &b, piece, (uint32_t)n_experts * REPACK_PARTS);
}

int reader_write_blocks(struct reader *r, const struct st_tensor *t, enum name_how how,
                        uint32_t layer) {
    const struct st_tensor *scales;

    TRY(layout_scales(r, t, &scales));
    if (how == NAME_BLOCKS_DOWN)
        return layout_blocks(r, t, scales, "blk.#.ffn_down_exps.weight", layer, 0, 0);
    TRY(layout_blocks(r, t, scales, "blk.#.ffn_gate_exps.weight", layer, 0, 1));
    return layout_blocks(r, t, scales, "blk.#.ffn_up_exps.weight", layer, 1, 1);
}

/* Adds tensor @name, the columns @from, @from + 1 + @skip, ... of each expert's matrix in @t, as
 * rows. */
static int layout_turned(struct reader *r, const struct st_tensor *t, const char *name,
                         uint32_t layer, uint32_t from, uint32_t skip) {
    uint64_t n_experts = t->dim[0], n_in = t->dim[1], n_columns = t->dim[2];
    struct gguf_built b = {.n_dims = 3};

    layout_name(b.name, name, layer);
    b.type = t->type == ST_F16 ? TENSOR_F16 : TENSOR_BF16;
    b.repack = (struct repack){.kind = REPACK_TURNED,
                               .bits = 16,
                               .group = 1,
                               .group_rows = 1,
                               .scale_type = b.type,
                               .skip = skip};
    b.ne[0] = n_in;
    b.ne[1] = b.piece_rows = n_columns / (1 + skip);
    b.ne[2] = n_experts;
    b.ne[3] = 1;
    if (n_columns % (1 + skip) || n_experts > 1 << 16)
        return layout_bad(r, t);
    CLEANUP(freep) struct gguf_piece *piece = calloc(n_experts, REPACK_PARTS * sizeof(*piece));
    if (!piece)
        return -ENOMEM;
    for (uint64_t e = 0; e < n_experts; e++)
        piece[e * REPACK_PARTS + REPACK_CODES] =
            (struct gguf_piece){t->file, t->offset + 2 * (e * n_in * n_columns + from)};
    return gguf_build_scattered(&r->build, &b, piece, (uint32_t)n_experts * REPACK_PARTS);
}

int reader_write_turned(struct reader *r, const struct st_tensor *t, enum name_how how,
                        uint32_t layer) {
    bool fits = t->n_dims == 3 && (t->type == ST_BF16 || t->type == ST_F16);

    for (uint32_t d = 0; d < 3 && fits; d++)
        fits = t->dim[d] > 0 && t->dim[d] <= 1 << 24;
    if (!fits)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' is no matrices of BF16 or F16",
                       r->file[t->file].name, t->name);
    if (how == NAME_TURNED_DOWN)
        return layout_turned(r, t, "blk.#.ffn_down_exps.weight", layer, 0, 0);
    TRY(layout_turned(r, t, "blk.#.ffn_gate_exps.weight", layer, 0, 1));
    return layout_turned(r, t, "blk.#.ffn_up_exps.weight", layer, 1, 1);
}

int reader_write_layout(struct reader *r, const struct st_tensor *t, enum name_how how,
                        uint32_t layer, enum tensor_type type) {
    struct layout_rows rows = {.t = t, .type = type, .layer = layer};

    switch (how) {
    case NAME_GATE_UP:
        return layout_gate_up(r, &rows);
    case NAME_SHARED_GATE_UP:
        return layout_shared_gate_up(r, &rows);
    case NAME_QKVZ:
        return layout_qkvz(r, &rows);
    default:
        return layout_kv_b(r, &rows);
    }
}
