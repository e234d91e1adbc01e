/*
 * layouts - tensors that checkpoints store together and GGUF apart, or in another order of rows.
 *
 * Such a tensor consists of equal groups of rows (the experts, or the key heads), and each group of
 * parts. A tensor of GGUF is a list of parts, each taken from all groups: it stays in the file, as
 * pieces of rows, whether or not these are quantised. Only the keys' half of latent attention is
 * turned, which needs a copy; if it is quantised, both halves are copied, in 16 bits.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mathx.h"
#include "base/try.h"
#include "checkpoint/quantised.h"
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
    /* NULL: the values stand for themselves */
    const struct quantised *q;
    enum tensor_type type;
    uint32_t layer;
    uint64_t n_groups, n_each, n_columns;
};

static int layout_bad(const struct reader *r, const struct st_tensor *t) {
    return err_set(r->err, 0, NULL, "%s: tensor '%s' has another shape than config.json says",
                   r->file[t->file].name, t->name);
}

/* Sets the format of the values of @rows. Returns 0 or -EINVAL. */
static int layout_type(const struct reader *r, struct layout_rows *rows) {
    if (!rows->q)
        return reader_type(r, rows->t, &rows->type);
    rows->type = repack_type(&rows->q->how, rows->q->n_in);
    return 0;
}

/* Counts the rows of @rows, and those of each of its matrices. Returns 0 or -EINVAL. */
static int layout_count(const struct reader *r, struct layout_rows *rows, uint64_t *n,
                        uint64_t *n_each) {
    const struct st_tensor *t = rows->t;

    *n = 1;
    if (rows->q) {
        rows->n_columns = rows->q->n_in;
        *n_each = rows->q->n_rows;
        *n = MAX(rows->q->n_stack, 1u) * rows->q->n_rows;
        return 0;
    }
    if (t->n_dims < 2 || t->n_dims > 3)
        return layout_bad(r, t);
    for (uint32_t d = 0; d + 1 < t->n_dims; d++)
        if (t->dim[d] == 0 || __builtin_mul_overflow(*n, t->dim[d], n))
            return layout_bad(r, t);
    rows->n_columns = t->dim[t->n_dims - 1];
    *n_each = t->dim[t->n_dims - 2];
    return rows->n_columns ? 0 : layout_bad(r, t);
}

/* Divides the rows of @rows into @n_groups groups of @n_each; 0: those of its matrices. */
static int layout_divide(const struct reader *r, uint64_t n_groups, uint64_t n_each,
                         struct layout_rows *rows) {
    uint64_t n = 0, n_own = 0;

    TRY(layout_count(r, rows, &n, &n_own));
    if (n_groups == 0) {
        n_each = n_own;
        n_groups = n / n_each;
    }
    if (n_each == 0 || n % n_groups || n / n_groups != n_each)
        return layout_bad(r, rows->t);
    rows->n_groups = n_groups;
    rows->n_each = n_each;
    return 0;
}

static void layout_name(char out[64], const char *pattern, uint32_t layer) {
    const char *at = strchr(pattern, '#');

    snprintf(out, 64, "%.*s%u%s", (int)(at - pattern), pattern, layer, at + 1);
}

/* Returns the largest number that divides @a and @b. */
static uint64_t layout_divisor(uint64_t a, uint64_t b) {
    for (uint64_t rest; b; b = rest) {
        rest = a % b;
        a = b;
    }
    return a;
}

/* Returns the most rows that divide all parts of @to. Where rows share scales in blocks, a piece
 * has rows of one block alone. */
static uint64_t layout_piece_rows(const struct layout_rows *rows, const struct layout_target *to) {
    uint64_t block = rows->q ? rows->q->how.group_rows : 1, n = 0;
    bool blocks = block > 1 && block < rows->q->n_rows;

    for (uint32_t i = 0; i < to->n; i++)
        n = layout_divisor(n, to->part[i].n);
    for (uint32_t i = 0; blocks && i < to->n; i++)
        n = layout_divisor(n, to->part[i].from);
    return blocks ? layout_divisor(layout_divisor(n, block), rows->n_each) : n;
}

/* Writes the place of rows [row, row + n), which is one of each part if they are quantised. */
static int layout_place(const struct reader *r, const struct layout_rows *rows, uint64_t row,
                        uint64_t n, struct repack *how, struct gguf_piece *out) {
    uint64_t row_bytes = rows->n_columns * st_type_bytes(rows->t->type);

    if (!rows->q) {
        *out = (struct gguf_piece){rows->t->file, rows->t->offset + row * row_bytes};
        return 0;
    }
    if (quantised_slice(rows->q, row, n, how, out) < 0)
        return err_set(r->err, 0, NULL,
                       "%s: tensor '%s' is cut where its codes or scales belong together",
                       r->file[rows->t->file].name, rows->t->name);
    return 0;
}

/* Adds the tensor @to, which stays in the file. */
static int layout_add(struct reader *r, const struct layout_rows *rows,
                      const struct layout_target *to) {
    struct gguf_built b = {.type = rows->type, .n_dims = 2};
    uint64_t n_rows = 0, piece_rows = layout_piece_rows(rows, to), k = 0;
    uint64_t each = rows->q ? REPACK_PARTS : 1;

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
    CLEANUP(freep) struct gguf_piece *piece = calloc(n_pieces, each * sizeof(*piece));
    if (!piece)
        return -ENOMEM;
    for (uint32_t i = 0; i < to->n; i++)
        for (uint64_t g = 0; g < rows->n_groups; g++)
            for (uint64_t at = 0; at < to->part[i].n; at += piece_rows, k += each) {
                uint64_t row = g * rows->n_each + to->part[i].from + at;

                TRY(layout_place(r, rows, row, piece_rows, &b.repack, &piece[k]));
            }
    TRY(gguf_build_scattered(&r->build, &b, piece, (uint32_t)k));
    if (!rows->q)
        return 0;
    return reader_write_factors(r, &b, &rows->q->factor, 1);
}

/* Experts' gate and up projections: [experts][gate rows, up rows][columns]. */
static int layout_gate_up(struct reader *r, struct layout_rows *rows) {
    TRY(layout_divide(r, 0, 0, rows));
    uint64_t half = rows->n_each / 2;
    const struct layout_target gate = {"blk.#.ffn_gate_exps.weight", true, 1, {{0, half}}};
    const struct layout_target up = {"blk.#.ffn_up_exps.weight", true, 1, {{half, half}}};

    if (rows->t->n_dims != 3 || rows->n_each < 2 || rows->n_each % 2)
        return layout_bad(r, rows->t);
    TRY(layout_add(r, rows, &gate));
    return layout_add(r, rows, &up);
}

/* The gate and up projections of one expert that all tokens use. */
static int layout_shared_gate_up(struct reader *r, struct layout_rows *rows) {
    TRY(layout_divide(r, 0, 0, rows));
    uint64_t half = rows->n_each / 2;
    const struct layout_target gate = {"blk.#.ffn_gate_shexp.weight", false, 1, {{0, half}}};
    const struct layout_target up = {"blk.#.ffn_up_shexp.weight", false, 1, {{half, half}}};

    if (rows->n_groups != 1 || rows->n_each < 2 || rows->n_each % 2)
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
    TRY(layout_divide(r, (uint64_t)keys, 2 * k + 2 * v, rows));
    const struct layout_target qkv = {
        "blk.#.attn_qkv.weight", false, 3, {{0, k}, {k, k}, {2 * k, v}}};
    const struct layout_target z = {"blk.#.attn_gate.weight", false, 1, {{2 * k + v, v}}};

    TRY(layout_add(r, rows, &qkv));
    return layout_add(r, rows, &z);
}

/* Reads rows of a tensor in order, in 16 or 32 bits. */
struct layout_input {
    const struct reader *r;
    const struct layout_rows *rows;
    struct quantised_parts parts;
    /* a row of values, if the tensor is quantised */
    float *value;
};

static void layout_input_close(struct layout_input *in) {
    quantised_free_parts(&in->parts);
    free(in->value);
}

static int layout_input_open(struct layout_input *in) {
    const struct quantised *q = in->rows->q;

    if (!q)
        return 0;
    in->value = malloc(q->n_in * sizeof(*in->value));
    return in->value ? quantised_read_parts(in->r, q, &in->parts) : -ENOMEM;
}

/* Writes row @i to @out: as it is stored, or its values rounded to rows->type. */
static int layout_input_row(struct layout_input *in, uint64_t i, uint8_t *out) {
    const struct layout_rows *rows = in->rows;
    const struct st_tensor *t = rows->t;
    size_t n = rows->n_columns, bytes = n * st_type_bytes(t->type);

    if (!rows->q) {
        if (pread(in->r->file[t->file].fd, out, bytes, (off_t)(t->offset + i * bytes)) !=
            (ssize_t)bytes)
            return err_set(in->r->err, 0, NULL, "%s: cannot read tensor '%s'",
                           in->r->file[t->file].name, t->name);
        return 0;
    }
    repack_values(&in->parts.t, i, in->value);
    quantised_store_halves(rows->q, in->value, out);
    return 0;
}

/* Rows [from, from + n) of each group, as a copy. */
struct layout_copy {
    const char *name;
    uint64_t from, n;
    /* [groups][columns][rows] in place of [groups][rows][columns] */
    bool turned;
};

/* Writes the rows of @c to @to, whose values have @size bytes. */
static int layout_write_copy(struct layout_input *in, const struct layout_copy *c, size_t size,
                             uint8_t *to) {
    const struct layout_rows *rows = in->rows;
    uint64_t n_columns = rows->n_columns;
    CLEANUP(freep) uint8_t *row = malloc(n_columns * size);

    if (!row)
        return -ENOMEM;
    for (uint64_t g = 0; g < rows->n_groups; g++)
        for (uint64_t i = 0; i < c->n; i++) {
            TRY(layout_input_row(in, g * rows->n_each + c->from + i, row));
            uint8_t *own = to + (g * c->n + i) * n_columns * size;

            if (!c->turned)
                memcpy(own, row, n_columns * size);
            for (uint64_t k = 0; c->turned && k < n_columns; k++)
                memcpy(to + ((g * n_columns + k) * c->n + i) * size, row + k * size, size);
        }
    return 0;
}

/* Adds a copy of rows. */
static int layout_add_copy(struct layout_input *in, struct reader *r, const struct layout_copy *c) {
    const struct layout_rows *rows = in->rows;
    size_t size = rows->type == TENSOR_F32 ? 4 : 2;
    struct gguf_built b = {.type = rows->type, .n_dims = 3};
    uint8_t *to;

    layout_name(b.name, c->name, rows->layer);
    b.ne[0] = c->turned ? c->n : rows->n_columns;
    b.ne[1] = c->turned ? rows->n_columns : c->n;
    b.ne[2] = rows->n_groups;
    b.ne[3] = 1;
    TRY(gguf_build_tensor(&r->build, &b, c->n * rows->n_columns * rows->n_groups * size, &to));
    return layout_write_copy(in, c, size, to);
}

/* Latent attention: rows of a head's keys and values. The engine multiplies queries by the keys'
 * matrix, which is turned for it. */
static int layout_kv_b(struct reader *r, struct layout_rows *rows) {
    double nope = reader_number(r, "qk_nope_head_dim"), value = reader_number(r, "v_head_dim");

    if (!(nope >= 1 && nope <= 4096 && value >= 1 && value <= 4096))
        return layout_bad(r, rows->t);
    if (rows->q && rows->q->n_stack)
        return layout_bad(r, rows->t);
    uint64_t k = (uint64_t)nope, v = (uint64_t)value;
    TRY(layout_divide(r, r->n_head, k + v, rows));
    const struct layout_target values = {"blk.#.attn_v_b.weight", true, 1, {{k, v}}};
    const struct layout_copy key_rows = {"blk.#.attn_k_b.weight", 0, k, true};
    const struct layout_copy value_rows = {"blk.#.attn_v_b.weight", k, v, false};
    CLEANUP(layout_input_close) struct layout_input in = {.r = r, .rows = rows};

    if (rows->q)
        rows->type = quantised_halves(rows->q);
    TRY(layout_input_open(&in));
    TRY(layout_add_copy(&in, r, &key_rows));
    if (rows->q)
        return layout_add_copy(&in, r, &value_rows);
    return layout_add(r, rows, &values);
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
                        uint32_t layer, const struct quantised *q) {
    struct layout_rows rows = {.t = t, .q = q, .layer = layer};

    TRY(layout_type(r, &rows));
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
