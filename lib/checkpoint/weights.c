/*
 * weights - the tensors of a checkpoint under their names and in the layout of GGUF.
 *
 * Matrices stay in their files. A matrix of all experts is the list of the matrices of each; rows
 * that RoPE rotates have another order (struct tensor.interleave). Vectors, routers and
 * convolutions are converted to F32, as GGUF has them: they are small.
 */

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mathx.h"
#include "base/try.h"
#include "checkpoint/quantised.h"
#include "checkpoint/reader.h"

/* Most blocks of multi-token prediction. */
#define MTP_MAX 8u

/* Parts of a name that its pattern leaves open. */
struct weight_place {
    const struct arch_name *name;
    uint32_t layer, expert;
};

/* A matrix of an expert, which belongs to the tensor `to`. */
struct weight_expert {
    char to[64];
    uint32_t expert;
    const struct st_tensor *t;
};

struct weights {
    struct reader *r;
    struct weight_expert *expert;
    uint32_t n_experts, cap;
};

/* Reads digits at *@text, below 1e6. */
static bool weights_digits(const char **text, uint32_t *out) {
    const char *p = *text;
    uint32_t v = 0;

    while (*p >= '0' && *p <= '9' && v < 100000)
        v = 10 * v + (uint32_t)(*p++ - '0');
    if (p == *text)
        return false;
    *text = p;
    *out = v;
    return true;
}

/* Returns true if @name is of the pattern, and sets the numbers in @out. */
static bool weights_match(const char *pattern, const char *name, struct weight_place *out) {
    for (; *pattern; pattern++) {
        bool number = *pattern == '#' || *pattern == '@';

        if (number && !weights_digits(&name, *pattern == '#' ? &out->layer : &out->expert))
            return false;
        if (!number && *pattern != *name++)
            return false;
    }
    return *name == 0;
}

bool reader_match(const char *pattern, const char *name, uint32_t *layer) {
    struct weight_place p = {0};

    if (!weights_match(pattern, name, &p))
        return false;
    *layer = p.layer;
    return true;
}

static bool weights_find_in(const struct arch_name *list, const char *name,
                            struct weight_place *out) {
    for (const struct arch_name *n = list; n && n->from; n++)
        if (weights_match(n->from, name, out)) {
            out->name = n;
            return true;
        }
    return false;
}

/* Returns @name without the prefix of the text model; NULL: it is that of another model in the
 * folder, which makes rows of pictures or sounds. */
static const char *weights_text_name(const char *name) {
    static const char *const others[] = {
        "model.vision",      "vision", "visual.",     "model.visual.",      "multi_modal",
        "model.multi_modal", "audio",  "model.audio", "model.embed_vision", "model.embed_audio",
        "model.mtp."};
    static const char *const own[] = {"model.language_model.",
                                      "language_model.model.",
                                      "language_model.",
                                      "model.",
                                      "backbone.",
                                      "bert.",
                                      "roberta."};

    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return NULL;
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        if (strncmp(name, own[i], strlen(own[i])) == 0)
            return name + strlen(own[i]);
    return name;
}

/* A name in the text model, in which blocks of multi-token prediction are further layers. */
struct weight_name {
    char s[ST_NAME_MAX + 32];
};

/* Makes a name of @rest in block @block of Nemotron's multi-token prediction, of which two are one
 * here: attention, and experts, whose norm has another name then. */
static void weights_mtp_pair(const struct reader *r, uint32_t block, const char *rest,
                             struct weight_name *out) {
    bool second = block % 2 == 1;

    if (second && strcmp(rest, ".norm.weight") == 0)
        rest = ".post_norm.weight";
    snprintf(out->s, sizeof(out->s), "layers.%u%s", r->n_layer + block / 2, rest);
}

/* Makes a name of @name, which begins with "mtp.": Qwen's models have their block apart. Returns
 * false if no block has such a tensor. */
static bool weights_mtp_name(const struct reader *r, const char *name, struct weight_name *out) {
    static const char *const parts[][2] = {
        {"fc.", "eh_proj."},
        {"pre_fc_norm_embedding.", "enorm."},
        {"pre_fc_norm_hidden.", "hnorm."},
        {"norm.", "shared_head.norm."},
        {"embed_tokens.", "embed_tokens."},
    };
    uint32_t block;

    name += strlen("mtp.");
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        if (strncmp(name, parts[i][0], strlen(parts[i][0])) == 0) {
            snprintf(out->s, sizeof(out->s), "layers.%u.%s%s", r->n_layer, parts[i][1],
                     name + strlen(parts[i][0]));
            return true;
        }
    if (strncmp(name, "layers.", 7) != 0)
        return false;
    name += strlen("layers.");
    if (!weights_digits(&name, &block))
        return false;
    if (r->row->blocks)
        weights_mtp_pair(r, block, name, out);
    else
        snprintf(out->s, sizeof(out->s), "layers.%u%s", r->n_layer + block, name);
    return true;
}

/* Does what weights_mtp_name() does for ERNIE's names, which begin with "mtp_" and have the number
 * of the block behind that of the part. */
static bool weights_mtp_part(const struct reader *r, const char *name, struct weight_name *out) {
    static const char *const parts[][2] = {
        {"mtp_block.", ""},
        {"mtp_emb_norm.", ".enorm"},
        {"mtp_hidden_norm.", ".hnorm"},
        {"mtp_linear_proj.", ".eh_proj"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        size_t len = strlen(parts[i][0]);
        const char *rest = name + len;
        uint32_t block;

        if (strncmp(name, parts[i][0], len) != 0 || !weights_digits(&rest, &block))
            continue;
        snprintf(out->s, sizeof(out->s), "layers.%u%s%s", r->n_layer + block, parts[i][1], rest);
        return true;
    }
    return false;
}

/* Finds the name of tensor @name in the text model. Returns false if it is left out: as part of
 * another model, or of a block of multi-token prediction that is not kept. */
static bool weights_own_name(const struct reader *r, const char *name, struct weight_name *out) {
    const char *text = weights_text_name(name);
    uint32_t layer;

    if (!text)
        return false;
    snprintf(out->s, sizeof(out->s), "%s", text);
    if (strncmp(text, "mtp.", 4) == 0 && !weights_mtp_name(r, text, out))
        return false;
    if (strncmp(text, "mtp_", 4) == 0 && !weights_mtp_part(r, text, out))
        return false;
    if (strncmp(out->s, "layers.", 7) != 0)
        return true;
    text = out->s + strlen("layers.");
    return !weights_digits(&text, &layer) || layer < r->n_layer + r->n_mtp;
}

void reader_count_mtp(struct reader *r) {
    bool found[MTP_MAX] = {0};

    for (uint32_t i = 0; i < r->list.n; i++) {
        struct weight_name name;
        uint32_t layer;

        r->n_mtp = MTP_MAX;
        if (!weights_own_name(r, r->list.tensor[i].name, &name))
            continue;
        const char *rest = name.s + strlen("layers.");
        bool of_layer = strncmp(name.s, "layers.", 7) == 0 && weights_digits(&rest, &layer);

        if (of_layer && layer >= r->n_layer && strncmp(rest, ".eh_proj.", 9) == 0)
            found[layer - r->n_layer] = true;
    }
    while (r->n_stored < MTP_MAX && found[r->n_stored])
        r->n_stored++;
    r->n_mtp = r->row->mtp ? r->n_stored : 0;
}

/* Refuses the tensor @t if it is of a layer that config.json leaves out: a model without its last
 * layers would still answer. */
static int weights_check_layer(const struct reader *r, const struct st_tensor *t) {
    static const char *const of_layers[] = {"layers.", "encoder.layers.", "encoder.layer."};
    const char *name = weights_text_name(t->name), *rest = NULL;
    const char *key = "num_hidden_layers";
    uint32_t layer;

    for (size_t i = 0; name && i < ARRAY_SIZE(of_layers); i++)
        if (strncmp(name, of_layers[i], strlen(of_layers[i])) == 0)
            rest = name + strlen(of_layers[i]);
    if (!rest || !weights_digits(&rest, &layer) || layer < r->n_layer + r->n_stored)
        return 0;
    if (isnan(reader_number(r, key)))
        key = "n_layer";
    return err_set(r->err, 0, NULL, "config.json: %s is %u, but %s has tensor '%s'", key,
                   r->n_layer, r->file[t->file].name, t->name);
}

/* Writes the name of GGUF for a place. */
static void weights_name(char out[64], const struct weight_place *p) {
    const char *at = strchr(p->name->to, '#');

    if (at)
        snprintf(out, 64, "%.*s%u%s", (int)(at - p->name->to), p->name->to, p->layer, at + 1);
    else
        snprintf(out, 64, "%s", p->name->to);
}

int reader_type(const struct reader *r, const struct st_tensor *t, enum tensor_type *out) {
    switch (t->type) {
    case ST_F32:
        *out = TENSOR_F32;
        return 0;
    case ST_F16:
        *out = TENSOR_F16;
        return 0;
    case ST_BF16:
        *out = TENSOR_BF16;
        return 0;
    default:
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has type %s, which is not supported there",
                       r->file[t->file].name, t->name, st_type_name(t->type));
    }
}

/* Sets the dimensions of @b, the innermost first, without those of 1 if @squeeze. */
static int weights_shape(const struct reader *r, const struct st_tensor *t, bool squeeze,
                         struct gguf_built *b) {
    b->n_dims = 0;
    for (uint32_t i = t->n_dims; i-- > 0;) {
        if (t->dim[i] == 0 || b->n_dims == 4)
            return err_set(r->err, 0, NULL, "%s: tensor '%s' has a shape that is not supported",
                           r->file[t->file].name, t->name);
        if (t->dim[i] > 1 || !squeeze)
            b->ne[b->n_dims++] = t->dim[i];
    }
    if (b->n_dims == 0)
        b->ne[b->n_dims++] = 1;
    for (uint32_t d = b->n_dims; d < 4; d++)
        b->ne[d] = 1;
    return 0;
}

/* Returns value @i of @n at @p. */
static float weights_value(enum st_type type, const uint8_t *p, size_t i) {
    uint32_t word;
    uint16_t half;

    if (type == ST_F32) {
        memcpy(&word, p + 4 * i, sizeof(word));
        return mx_float_of(le32toh(word));
    }
    memcpy(&half, p + 2 * i, sizeof(half));
    half = le16toh(half);
    if (type == ST_F16)
        return mx_half_to_float(half);
    return mx_bf16_to_float(half);
}

/* Returns -e^v. mx_exp() needs an argument below 700, and e^200 is infinite as a float already. */
static float weights_neg_exp(float v) {
    if (isnan(v))
        return v;
    return (float)-mx_exp(fmin(fmax((double)v, -200), 200));
}

static float weights_changed(const struct reader *r, enum name_how how, float v) {
    if (how == NAME_NEG_EXP || how == NAME_HEADS_NEG_EXP)
        return weights_neg_exp(v);
    if (how == NAME_GAIN && r->row->gains_minus_one)
        return v + 1;
    return v;
}

/* Makes rows of the values of @b: one of each, or one of each group of Mamba-2's heads. Returns 0;
 * -EINVAL: @t cannot be cut so. */
static int weights_rows(const struct reader *r, const struct st_tensor *t, enum name_how how,
                        struct gguf_built *b) {
    double groups = how == NAME_GROUPS ? reader_number(r, "n_groups") : (double)b->ne[0];
    bool whole = groups >= 1 && groups <= (double)b->ne[0] && groups == floor(groups);

    if (b->n_dims != 1 || !whole || b->ne[0] % (uint64_t)groups)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has a shape that is not supported",
                       r->file[t->file].name, t->name);
    b->ne[1] = (uint64_t)groups;
    b->ne[0] /= b->ne[1];
    b->n_dims = 2;
    return 0;
}

/* Sets the order of rows or values of q or k, unless the folder has that of GGUF. */
static void weights_order(const struct reader *r, enum name_how how, struct gguf_built *b) {
    if (how != NAME_ROTATED || (!r->row->permuted && !r->row->halved))
        return;
    b->interleave = r->head_dim;
    if (r->row->halved)
        b->halved = r->n_rot;
}

int reader_bytes(const struct reader *r, const struct st_tensor *t, uint8_t **out) {
    if (t->n_bytes > r->build.data.max) /* before the memory is taken */
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has %llu bytes; at most %zu are supported",
                       r->file[t->file].name, t->name, (unsigned long long)t->n_bytes,
                       r->build.data.max);
    uint8_t *bytes = malloc(t->n_bytes + 1);

    if (!bytes)
        return -ENOMEM;
    for (size_t at = 0; at < t->n_bytes;) {
        ssize_t got =
            pread(r->file[t->file].fd, bytes + at, t->n_bytes - at, (off_t)(t->offset + at));

        if (got <= 0) {
            free(bytes);
            return err_set(r->err, 0, NULL, "%s: cannot read tensor '%s'", r->file[t->file].name,
                           t->name);
        }
        at += (size_t)got;
    }
    *out = bytes;
    return 0;
}

static void weights_store(uint8_t *to, size_t i, float v) {
    uint32_t word = htole32(mx_bits_of(v));

    memcpy(to + i * sizeof(word), &word, sizeof(word));
}

/* Adds @t, converted to F32. */
static int weights_convert(struct reader *r, const struct st_tensor *t, enum name_how how,
                           struct gguf_built *b) {
    size_t n = t->n_bytes / st_type_bytes(t->type);
    CLEANUP(freep) uint8_t *bytes = NULL;
    struct gguf_built order = {0};
    uint8_t *to;

    TRY(reader_bytes(r, t, &bytes));
    weights_order(r, how, &order);
    if (order.interleave && n % order.interleave)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has no whole heads of %u values",
                       r->file[t->file].name, t->name, r->head_dim);
    b->type = TENSOR_F32;
    TRY(gguf_build_tensor(&r->build, b, n * sizeof(float), &to));
    for (size_t i = 0; i < n; i++) {
        size_t from = tensor_order(order.interleave, order.halved, i);

        weights_store(to, i, weights_changed(r, how, weights_value(t->type, bytes, from)));
    }
    return 0;
}

int reader_copy(struct reader *r, const struct st_tensor *t, enum name_how how,
                struct gguf_built *b) {
    CLEANUP(freep) uint8_t *bytes = NULL;
    bool floats = t->n_dims < 2 || how == NAME_GAIN;
    uint8_t *to;

    TRY(reader_type(r, t, &b->type));
    TRY(weights_shape(r, t, floats, b));
    if (floats)
        return weights_convert(r, t, how, b);
    TRY(reader_bytes(r, t, &bytes));
    TRY(gguf_build_tensor(&r->build, b, t->n_bytes, &to));
    memcpy(to, bytes, t->n_bytes);
    return 0;
}

/* Adds the biases of all experts, [experts, 2 * width], in F32: values of the gate and of the up
 * projection take turns. */
static int weights_split_bias(struct reader *r, const struct st_tensor *t, uint32_t layer) {
    static const char *const names[2] = {"gate", "up"};
    size_t n = t->n_bytes / st_type_bytes(t->type) / 2;
    CLEANUP(freep) uint8_t *bytes = NULL;
    uint8_t *to;

    if (t->n_dims != 2 || t->dim[0] == 0 || t->dim[1] == 0 || t->dim[1] % 2)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has a shape that is not supported",
                       r->file[t->file].name, t->name);
    TRY(reader_bytes(r, t, &bytes));
    for (size_t k = 0; k < 2; k++) {
        struct gguf_built b = {
            .type = TENSOR_F32, .n_dims = 2, .ne = {t->dim[1] / 2, t->dim[0], 1, 1}};

        snprintf(b.name, sizeof(b.name), "blk.%u.ffn_%s_exps.bias", layer, names[k]);
        TRY(gguf_build_tensor(&r->build, &b, n * sizeof(float), &to));
        for (size_t i = 0; i < n; i++)
            weights_store(to, i, weights_value(t->type, bytes, 2 * i + k));
    }
    return 0;
}

/* Checks that rows that RoPE rotates are whole heads, and sets their order. */
static int weights_order_rows(const struct reader *r, const char *file, const char *name,
                              enum name_how how, struct gguf_built *b) {
    weights_order(r, how, b);
    if (b->interleave && (b->piece_rows % b->interleave || b->interleave % 2))
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has no whole heads of %u rows", file, name,
                       r->head_dim);
    return 0;
}

/* Adds a matrix in place. */
static int weights_in_place(struct reader *r, const struct st_tensor *t, enum name_how how,
                            struct gguf_built *b) {
    const struct gguf_piece piece = {t->file, t->offset};

    b->piece_rows = b->ne[1] * b->ne[2] * b->ne[3];
    TRY(weights_order_rows(r, r->file[t->file].name, t->name, how, b));
    return gguf_build_scattered(&r->build, b, &piece, 1);
}

/* Writes the places of the parts of @q. */
static void weights_parts(const struct quantised *q, struct gguf_piece *piece) {
    for (int i = 0; i < REPACK_PARTS; i++) {
        const struct st_tensor *t = q->part[i];

        piece[i] = t ? (struct gguf_piece){t->file, t->offset} : (struct gguf_piece){0};
    }
}

/* Sets @b to matrices like @q. */
static void weights_quantised_shape(const struct quantised *q, struct gguf_built *b) {
    b->type = repack_type(&q->how, q->n_in);
    b->repack = q->how;
    b->n_dims = 2;
    b->ne[0] = q->n_in;
    b->ne[1] = b->piece_rows = q->n_rows;
    b->ne[2] = b->ne[3] = 1;
}

int reader_write_factors(struct reader *r, const struct gguf_built *b, const float *factor,
                         uint32_t n) {
    struct gguf_built s = {.type = TENSOR_F32, .ne = {n, 1, 1, 1}, .n_dims = 1};
    const char *end = strstr(b->name, ".weight");
    uint8_t *to;

    if (factor[0] == 0)
        return 0;
    if (strncmp(b->name, "token_embd", 10) == 0)
        return err_set(r->err, 0, NULL, "NVFP4 is not supported for the table of tokens");
    snprintf(s.name, sizeof(s.name), "%.*s.scale", end ? (int)(end - b->name) : 50, b->name);
    TRY(gguf_build_tensor(&r->build, &s, n * sizeof(float), &to));
    for (uint32_t i = 0; i < n; i++)
        weights_store(to, i, factor[i]);
    return 0;
}

/* Adds the stack of matrices @q, whose codes are @t, as one tensor. */
static int weights_stack(struct reader *r, const struct quantised *q, struct gguf_built *b) {
    CLEANUP(freep) struct gguf_piece *piece = calloc(q->n_stack, REPACK_PARTS * sizeof(*piece));

    if (!piece)
        return -ENOMEM;
    for (uint64_t i = 0; i < q->n_stack; i++)
        TRY(quantised_slice(q, i * q->n_rows, q->n_rows, &b->repack, piece + i * REPACK_PARTS));
    b->n_dims = 3;
    b->ne[2] = q->n_stack;
    return gguf_build_scattered(&r->build, b, piece, (uint32_t)q->n_stack * REPACK_PARTS);
}

/* Adds the quantised matrix @q, whose codes are @t. */
static int weights_quantised(struct reader *r, const struct st_tensor *t, const struct quantised *q,
                             enum name_how how, struct gguf_built *b) {
    struct gguf_piece piece[REPACK_PARTS];

    if (how != NAME_PLAIN && how != NAME_ROTATED && how != NAME_POOLER)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has type %s, which is not supported there",
                       r->file[t->file].name, t->name, st_type_name(t->type));
    weights_quantised_shape(q, b);
    TRY(weights_order_rows(r, r->file[t->file].name, t->name, how, b));
    if (q->n_stack)
        return weights_stack(r, q, b);
    weights_parts(q, piece);
    TRY(gguf_build_scattered(&r->build, b, piece, REPACK_PARTS));
    return reader_write_factors(r, b, &q->factor, 1);
}

/* Keeps a matrix of an expert for weights_add_experts(). */
static int weights_add_expert(struct weights *w, const struct weight_place *p,
                              const struct st_tensor *t) {
    if (!ARRAY_GROW(w->expert, w->n_experts, w->cap, 256))
        return -ENOMEM;
    struct weight_expert *e = &w->expert[w->n_experts++];
    weights_name(e->to, p);
    e->expert = p->expert;
    e->t = t;
    return 0;
}

/* Adds the table of positions @t without the rows that no token has. */
static int weights_positions(struct reader *r, const struct st_tensor *t, struct gguf_built *b) {
    struct st_tensor rest = *t;

    if (t->n_dims != 2 || t->dim[0] <= r->n_padded)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has a shape that is not supported",
                       r->file[t->file].name, t->name);
    uint64_t row_bytes = t->n_bytes / t->dim[0];
    rest.dim[0] -= r->n_padded;
    rest.offset += r->n_padded * row_bytes;
    rest.n_bytes -= r->n_padded * row_bytes;
    TRY(weights_shape(r, &rest, false, b));
    return weights_convert(r, &rest, NAME_POSITIONS, b);
}

/* Returns true if no tensor of GGUF is made of @t, which has the name @name. */
static bool weights_are_left_out(const struct reader *r, const struct arch_name *name) {
    /* a tied output matrix may be there as a copy */
    bool tied = yyjson_get_bool(yyjson_obj_get(r->text, "tie_word_embeddings")) ||
                yyjson_get_bool(yyjson_obj_get(r->config, "tie_word_embeddings"));

    if (name->how == NAME_POOLER)
        return !st_find(&r->list, "classifier.weight");
    return name->how == NAME_LEFT_OUT || (tied && strcmp(name->to, "output.weight") == 0);
}

/* Adds the tensor @t of the checkpoint. */
static int weights_add(struct weights *w, const struct st_tensor *t) {
    struct reader *r = w->r;
    struct weight_place p = {0};
    struct gguf_built b = {0};
    struct weight_name name;
    struct quantised q;

    TRY(weights_check_layer(r, t));
    if (!weights_own_name(r, t->name, &name))
        return 0;
    int form = quantised_find(r, t, &q);
    if (form < 0 || form == QUANTISED_COMPANION)
        return MIN(form, 0);
    if (form == QUANTISED_MATRIX)
        weights_own_name(r, q.name, &name);
    if (!weights_find_in(r->row->names, name.s, &p) && !weights_find_in(arch_names, name.s, &p))
        return err_set(r->err, 0, NULL, "%s: tensor '%s' is unknown for %s models",
                       r->file[t->file].name, t->name, r->row->model_type);
    if (weights_are_left_out(r, p.name))
        return 0;
    if (p.name->how == NAME_EXPERT)
        return weights_add_expert(w, &p, t);
    weights_name(b.name, &p);
    const struct quantised *codes = NULL;
    if (form == QUANTISED_MATRIX)
        codes = &q;
    if (p.name->how >= NAME_GATE_UP && p.name->how <= NAME_KV_B)
        return reader_write_layout(r, t, p.name->how, p.layer, codes);
    if (form == QUANTISED_MATRIX)
        return weights_quantised(r, t, &q, p.name->how, &b);
    if (p.name->how == NAME_BLOCKS_GATE_UP || p.name->how == NAME_BLOCKS_DOWN)
        return reader_write_blocks(r, t, p.name->how, p.layer);
    if (p.name->how == NAME_TURNED_GATE_UP || p.name->how == NAME_TURNED_DOWN)
        return reader_write_turned(r, t, p.name->how, p.layer);
    TRY(reader_type(r, t, &b.type));
    if (p.name->how == NAME_GATE_UP_BIAS)
        return weights_split_bias(r, t, p.layer);
    if (p.name->how == NAME_POSITIONS)
        return weights_positions(r, t, &b);
    bool floats = t->n_dims < 2 || (p.name->how != NAME_PLAIN && p.name->how != NAME_ROTATED &&
                                    p.name->how != NAME_POOLER);
    TRY(weights_shape(r, t, floats, &b));
    if (p.name->how >= NAME_HEADS && p.name->how <= NAME_GROUPS)
        TRY(weights_rows(r, t, p.name->how, &b));
    if (floats)
        return weights_convert(r, t, p.name->how, &b);
    return weights_in_place(r, t, p.name->how, &b);
}

static int weights_by_expert(const void *a, const void *b) {
    const struct weight_expert *x = a, *y = b;
    int order = strcmp(x->to, y->to);

    return order ? order : (x->expert > y->expert) - (x->expert < y->expert);
}

/* Adds the tensor of the @n quantised experts at @e, of which @first is the first. */
static int weights_join_quantised(struct reader *r, const struct weight_expert *e, uint32_t n,
                                  const struct quantised *first) {
    CLEANUP(freep) struct gguf_piece *piece = calloc(n, REPACK_PARTS * sizeof(*piece));
    CLEANUP(freep) float *factor = calloc(n, sizeof(*factor));
    struct gguf_built b = {0};
    struct quantised q;

    if (!piece || !factor)
        return -ENOMEM;
    weights_quantised_shape(first, &b);
    snprintf(b.name, sizeof(b.name), "%s", e->to);
    b.n_dims = 3;
    b.ne[2] = n;
    for (uint32_t i = 0; i < n; i++) {
        int form = quantised_find(r, e[i].t, &q);

        if (form < 0)
            return form;
        if (form != QUANTISED_MATRIX || q.n_stack || q.n_rows != first->n_rows ||
            q.n_in != first->n_in || memcmp(&q.how, &first->how, sizeof(q.how)) != 0)
            return err_set(r->err, 0, NULL, "tensors '%s' and '%s' differ in shape or type",
                           e->t->name, e[i].t->name);
        weights_parts(&q, piece + (size_t)i * REPACK_PARTS);
        factor[i] = q.factor;
    }
    TRY(gguf_build_scattered(&r->build, &b, piece, n * REPACK_PARTS));
    return reader_write_factors(r, &b, factor, n);
}

/* Adds the tensor of the @n experts at @e, which are not quantised. */
static int weights_join_plain(struct reader *r, const struct weight_expert *e, uint32_t n) {
    CLEANUP(freep) struct gguf_piece *piece = calloc(n, sizeof(*piece));
    struct gguf_built b = {0};

    if (!piece)
        return -ENOMEM;
    TRY(reader_type(r, e->t, &b.type));
    TRY(weights_shape(r, e->t, false, &b));
    snprintf(b.name, sizeof(b.name), "%s", e->to);
    for (uint32_t i = 0; i < n; i++) {
        const struct st_tensor *t = e[i].t;

        if (t->type != e->t->type || t->n_dims != 2 || t->dim[0] != e->t->dim[0] ||
            t->dim[1] != e->t->dim[1])
            return err_set(r->err, 0, NULL, "tensors '%s' and '%s' differ in shape or type",
                           e->t->name, t->name);
        piece[i] = (struct gguf_piece){t->file, t->offset};
    }
    b.n_dims = 3;
    b.ne[2] = n;
    b.piece_rows = b.ne[1];
    return gguf_build_scattered(&r->build, &b, piece, n);
}

/* Adds the tensor of the @n experts at @e. */
static int weights_join(struct reader *r, const struct weight_expert *e, uint32_t n) {
    struct quantised first;

    for (uint32_t i = 0; i < n; i++)
        if (e[i].expert != i)
            return err_set(r->err, 0, NULL, "tensor '%s' is that of expert %u, where %u is missing",
                           e[i].t->name, e[i].expert, i);
    int form = quantised_find(r, e->t, &first);
    if (form < 0)
        return form;
    if (form == QUANTISED_MATRIX)
        return weights_join_quantised(r, e, n, &first);
    return weights_join_plain(r, e, n);
}

/* Adds the tensors of all experts. */
static int weights_add_experts(struct weights *w) {
    uint32_t n;

    if (w->n_experts)
        qsort(w->expert, w->n_experts, sizeof(*w->expert), weights_by_expert);
    for (uint32_t i = 0; i < w->n_experts; i += n) {
        for (n = 1; i + n < w->n_experts && strcmp(w->expert[i].to, w->expert[i + n].to) == 0;)
            n++;
        TRY(weights_join(w->r, &w->expert[i], n));
    }
    return 0;
}

/* Adds the tensors of all files of the folder. Returns 0 or -errno. */
static int weights_add_all(struct weights *w, const struct st_list *list) {
    for (uint32_t i = 0; i < list->n; i++)
        TRY(weights_add(w, &list->tensor[i]));
    return weights_add_experts(w);
}

int reader_write_tensors(struct reader *r) {
    struct weights w = {.r = r};
    int result = weights_add_all(&w, &r->list);

    free(w.expert);
    return result;
}
