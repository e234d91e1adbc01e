#include "engine/bind/bind.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/result.h"

int bind_init(struct binder *b, const struct gguf *file, const char *arch, struct err *err) {
    *b = (struct binder){.file = file, .arch = arch, .row = arch, .err = err};
    b->used = calloc(gguf_n_tensors(file) + 1, sizeof(*b->used));
    return enomem_unless(b->used);
}

struct view *views_free(struct view *v) {
    for (struct view *next; v; v = next) {
        next = v->next;
        free(v);
    }
    return NULL;
}

void bind_deinit(struct binder *b) {
    b->views = views_free(b->views);
    free(b->used);
    b->used = NULL;
}

/* Finds a tensor, of integers or not, and marks it as used. NULL: it is absent, or an earlier call
 * failed. */
static const struct tensor *bind_find_named(struct binder *b, enum bind_need need, bool integers,
                                            const char *name) {
    assert(b->used);
    if (b->survey && need != BIND_NEVER)
        survey_tensor(b->survey, name, need == BIND_MUST && !gguf_find(b->file, name));
    if (b->r < 0 || need == BIND_NEVER)
        return NULL;
    const struct tensor *t = gguf_find(b->file, name);
    if (t && (t->format->type == TENSOR_I32) != integers) {
        bind_refuse(b,
                    integers ? "tensor '%s' has type %s, only I32 is supported there"
                             : "tensor '%s' has type %s, which is not supported for weights",
                    name, t->format->name);
        return NULL;
    }
    if (t) {
        bool *used = &b->used[t - gguf_tensor(b->file, 0)];

        if (!*used) {
            b->weight_bytes += t->n_bytes;
            b->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        }
        *used = true;
    } else if (need == BIND_MUST) {
        bind_refuse(b, "the model file has no tensor '%s', which %s models need", name, b->row);
    }
    return t;
}

/* Calls bind_find_named() with a name printed from @fmt. */
static const struct tensor *bind_find(struct binder *b, enum bind_need need, bool integers,
                                      const char *fmt, va_list ap) {
    char name[96];
    int n = vsnprintf(name, sizeof(name), fmt, ap);

    assert(n > 0 && (size_t)n < sizeof(name));
    return bind_find_named(b, need, integers, name);
}

/* Checks that @t is n2 matrices of n1 rows of n0 values; else -EINVAL in the binder. */
static bool bind_has_shape(struct binder *b, const struct tensor *t, uint64_t n0, uint64_t n1,
                           uint64_t n2) {
    if (t->ne[0] == n0 && t->ne[1] == n1 && t->ne[2] == n2 && t->ne[3] == 1)
        return true;
    bind_refuse(
        b,
        "tensor '%s' is %llu x %llu x %llu x %llu, the hyperparameters require %llu x %llu x %llu",
        t->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
        (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], (unsigned long long)n0,
        (unsigned long long)n1, (unsigned long long)n2);
    return false;
}

/* Checks that the values of @t are F32; else -EINVAL in the binder. */
static bool is_float(struct binder *b, const struct tensor *t) {
    if (t->format->type == TENSOR_F32)
        return true;
    bind_refuse(b, "tensor '%s' has type %s, only F32 is supported there", t->name,
                t->format->name);
    return false;
}

/* Adds a copy of @of to the views, which the caller changes. NULL: -ENOMEM is in the binder. */
static struct tensor *add_view(struct binder *b, const struct tensor *of) {
    struct view *v = malloc(sizeof(*v));

    if (!v) {
        b->r = -ENOMEM;
        return NULL;
    }
    *v = (struct view){.next = b->views, .tensor = *of};
    b->views = v;
    return &v->tensor;
}

/* Returns the tensor NAME@suffix beside NAME.weight, or NULL. */
static const struct tensor *bind_beside(struct binder *b, const struct tensor *t,
                                        const char *suffix) {
    const char *end = strrchr(t->name, '.');
    char name[96];

    if (!end || strcmp(end, ".weight") != 0)
        return NULL;
    int n = snprintf(name, sizeof(name), "%.*s%s", (int)(end - t->name), t->name, suffix);
    if ((size_t)n >= sizeof(name))
        return NULL;
    return bind_find_named(b, BIND_MAY, false, name);
}

/* Returns the matrix with its scale, the same object for the same tensor. Tables, whose rows are
 * looked up, have no scale. */
static const struct tensor *with_scale(struct binder *b, const struct tensor *t) {
    if (t->format->type != TENSOR_NVFP4 || strstr(t->name, "token_embd"))
        return t;
    (void)bind_beside(b, t, ".input_scale");
    const struct tensor *scale = bind_beside(b, t, ".scale");
    if (!scale)
        return t;
    for (const struct view *v = b->views; v; v = v->next)
        if (v->tensor.scale == scale && v->tensor.data == t->data && v->tensor.ne[1] == t->ne[1])
            return &v->tensor;
    struct tensor *scaled =
        bind_has_shape(b, scale, t->ne[2], 1, 1) && is_float(b, scale) ? add_view(b, t) : NULL;
    if (scaled)
        scaled->scale = scale;
    return scaled;
}

const struct tensor *bind_matrices(struct binder *b, enum bind_need need, uint64_t n_in,
                                   uint64_t n_out, uint64_t n, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    const struct tensor *t = bind_find(b, need, false, fmt, ap);
    va_end(ap);
    if (t && bind_has_shape(b, t, n_in, n_out, n))
        return with_scale(b, t);
    return NULL;
}

const struct tensor *bind_vectors(struct binder *b, enum bind_need need, uint64_t n,
                                  uint64_t n_rows, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    const struct tensor *t = bind_find(b, need, false, fmt, ap);
    va_end(ap);
    if (t && bind_has_shape(b, t, n, n_rows, 1) && is_float(b, t))
        return t;
    return NULL;
}

const struct tensor *layer_matrix(struct binder *b, uint32_t l, const char *name, uint64_t n_in,
                                  uint64_t n_out) {
    return bind_matrix(b, BIND_MUST, n_in, n_out, "blk.%u.%s.weight", l, name);
}

const struct tensor *layer_matrices(struct binder *b, uint32_t l, const char *name, uint64_t n_in,
                                    uint64_t n_out, uint64_t n) {
    return bind_matrices(b, BIND_MUST, n_in, n_out, n, "blk.%u.%s.weight", l, name);
}

const struct tensor *layer_vector(struct binder *b, uint32_t l, const char *name, uint64_t n) {
    return bind_vector(b, BIND_MUST, n, "blk.%u.%s.weight", l, name);
}

const struct tensor *bind_table(struct binder *b, uint64_t n, uint64_t n_rows, const char *fmt,
                                ...) {
    va_list ap;

    va_start(ap, fmt);
    const struct tensor *t = bind_find(b, BIND_MUST, true, fmt, ap);
    va_end(ap);
    if (t && bind_has_shape(b, t, n, n_rows, 1))
        return t;
    return NULL;
}

const struct tensor *bind_rows(struct binder *b, const struct tensor *t, uint64_t first,
                               uint64_t n) {
    if (b->r < 0 || !t)
        return NULL;
    assert(first + n <= t->ne[1] * t->ne[2] && (!t->scale || t->ne[2] == 1));
    struct tensor *part = add_view(b, t);
    if (!part)
        return NULL;
    part->n_dims = 2;
    part->ne[1] = n;
    part->ne[2] = 1;
    part->n_bytes = n * t->row_bytes;
    tensor_skip_rows(part, first);
    part->file_offset += first * t->row_bytes;
    return part;
}

const struct tensor *bind_ones(struct binder *b, uint64_t n) {
    static const char name[] = "ones";

    if (b->r < 0)
        return NULL;
    for (const struct view *v = b->views; v; v = v->next)
        if (v->tensor.name == name && v->tensor.ne[0] == n)
            return &v->tensor;
    struct view *v = malloc(sizeof(*v) + n * sizeof(v->own[0]));
    if (!v) {
        b->r = -ENOMEM;
        return NULL;
    }
    for (uint64_t i = 0; i < n; i++)
        v->own[i] = 1;
    v->next = b->views;
    v->tensor = (struct tensor){
        .name = name,
        .format = tensor_format(TENSOR_F32),
        .n_dims = 1,
        .ne = {n, 1, 1, 1},
        .row_bytes = n * sizeof(v->own[0]),
        .n_bytes = n * sizeof(v->own[0]),
        .data = (const uint8_t *)v->own,
    };
    b->views = v;
    return &v->tensor;
}

const struct tensor *bind_values(struct binder *b, const struct tensor *t, uint64_t first,
                                 uint64_t n) {
    struct tensor *part = NULL;
    const uint8_t *row = NULL;

    if (t && (t->data || t->piece))
        row = tensor_row(t, 0);
    if (t && b->r == 0)
        part = add_view(b, t);
    if (!part)
        return NULL;
    assert(t->format->block == 1 && !t->repack && first + n <= t->ne[0]);
    size_t at = first * t->format->block_bytes;
    part->ne[0] = n;
    part->row_bytes = part->n_bytes = n * t->format->block_bytes;
    if (row)
        part->data = row + at;
    else
        part->data = NULL;
    part->piece = NULL;
    part->first = 0;
    part->file_offset += at;
    return part;
}

const struct tensor *bind_flat(struct binder *b, const struct tensor *t) {
    struct tensor *flat = NULL;

    if (t && b->r == 0)
        flat = add_view(b, t);
    if (!flat)
        return NULL;
    assert(t->format->block == 1);
    flat->n_dims = 1;
    flat->ne[0] = t->ne[0] * t->ne[1];
    flat->ne[1] = 1;
    flat->row_bytes = t->n_bytes;
    return flat;
}

const struct tensor *bind_any(struct binder *b, const char *name) {
    return bind_find_named(b, BIND_MAY, false, name);
}

void bind_ignore(struct binder *b, const char *prefix) {
    for (uint64_t i = 0; i < gguf_n_tensors(b->file); i++)
        b->used[i] |= strncmp(gguf_tensor(b->file, i)->name, prefix, strlen(prefix)) == 0;
}

void bind_skip(struct binder *b, uint32_t block) {
    char prefix[32];

    snprintf(prefix, sizeof(prefix), "blk.%u.", block);
    bind_ignore(b, prefix);
}

void bind_only_blocks(struct binder *b, uint32_t first) {
    unsigned block;

    for (uint64_t i = 0; i < gguf_n_tensors(b->file); i++)
        b->used[i] |=
            sscanf(gguf_tensor(b->file, i)->name, "blk.%u.", &block) != 1 || block >= first;
}

void bind_rest(struct binder *b) {
    for (uint64_t i = 0; i < gguf_n_tensors(b->file) && b->r == 0; i++)
        if (!b->used[i])
            bind_refuse(b, "tensor '%s' is unknown for %s models", gguf_tensor(b->file, i)->name,
                        b->row);
}
