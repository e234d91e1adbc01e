#pragma once

/*
 * bind - finds the tensors of a model and checks their shapes against the hyperparameters. Used by
 * engine/arch and engine/vision. The first error is kept in binder.r and @err; later calls do
 * nothing and return NULL.
 *
 * A tensor of the file that was never bound is an error, too (bind_rest()): without a scale or a
 * bias a model would almost work.
 */

#include "base/err.h"
#include "base/gguf.h"
#include "engine/bind/survey.h"

/* States that a tensor must not be bound, may be missing, or must exist. */
enum bind_need { BIND_NEVER, BIND_MAY, BIND_MUST };

/* Returns @need for a tensor that is @wanted, else BIND_NEVER. */
static inline enum bind_need bind_if(bool wanted, enum bind_need need) {
    if (wanted)
        return need;
    return BIND_NEVER;
}

/* Invariant: r is 0 or the first error, whose text is in *err; used[i] means that tensor i was
 * bound by name. */
struct binder {
    const struct gguf *file;
    /* prefix of keys */
    const char *arch;
    /* for messages: the architecture as which the file is read */
    const char *row;
    /* [gguf_n_tensors] */
    bool *used;
    struct err *err;
    /* 0, or the first error */
    int r;
    /* records what is asked of the file; NULL: nothing is */
    struct survey *survey;
    /* sums over the tensors that were found */
    uint64_t weight_bytes, n_params;
    /* made by the binder; the caller takes ownership */
    struct view *views;
};

/* A part of a tensor, under the name of the whole tensor, a tensor with its scale, or one with the
 * values of its own. */
struct view {
    struct view *next;
    struct tensor tensor;
    float own[];
};

/* Frees a list of views; accepts NULL, returns NULL. */
struct view *views_free(struct view *v);

/* Sets the error of a binder: -EINVAL with a text, as err_set() does. Keeps an earlier one. */
#define bind_refuse(b, ...) ((b)->r = (b)->r < 0 ? (b)->r : err_set((b)->err, 0, NULL, __VA_ARGS__))

/* Initialises a binder; reads nothing from @file yet. @file, @arch and @err stay the caller's.
 * Returns 0 or -ENOMEM. */
int bind_init(struct binder *b, const struct gguf *file, const char *arch, struct err *err);
/* Frees the binder. The bound tensors stay valid, because the file owns them. */
void bind_deinit(struct binder *b);

/* Binds the matrix W of y = W x: @n_out rows of @n_in values, in any format. NVFP4 has tensor.scale
 * if the file has NAME.scale beside NAME.weight; NAME.input_scale, for devices that multiply
 * activations of 4 bits, is not read. */
#define bind_matrix(b, need, n_in, n_out, ...) bind_matrices(b, need, n_in, n_out, 1, __VA_ARGS__)
/* Binds @n such matrices in a tensor of three dimensions. */
const struct tensor *bind_matrices(struct binder *b, enum bind_need need, uint64_t n_in,
                                   uint64_t n_out, uint64_t n, const char *fmt, ...) PRINTF(6, 7);
/* Binds @n values, F32: norms and biases. */
#define bind_vector(b, need, n, ...) bind_vectors(b, need, n, 1, __VA_ARGS__)
/* Binds @n_rows such vectors in a tensor of two dimensions. */
const struct tensor *bind_vectors(struct binder *b, enum bind_need need, uint64_t n,
                                  uint64_t n_rows, const char *fmt, ...) PRINTF(5, 6);

/* Bind a tensor that layer @l must have, "blk.@l.@name.weight". */
const struct tensor *layer_matrix(struct binder *b, uint32_t l, const char *name, uint64_t n_in,
                                  uint64_t n_out);
const struct tensor *layer_matrices(struct binder *b, uint32_t l, const char *name, uint64_t n_in,
                                    uint64_t n_out, uint64_t n);
const struct tensor *layer_vector(struct binder *b, uint32_t l, const char *name, uint64_t n);

/* Binds @n_rows rows of @n integers, I32; the caller checks their values. */
const struct tensor *bind_table(struct binder *b, uint64_t n, uint64_t n_rows, const char *fmt, ...)
    PRINTF(4, 5);

/* Returns values [first, first + n) of the vector @t, which bind_vector() has returned; NULL for
 * NULL. Valid as long as b->views. */
const struct tensor *bind_values(struct binder *b, const struct tensor *t, uint64_t first,
                                 uint64_t n);
/* Returns rows [first, first + n) of @t, which has at least first + n rows; NULL for NULL. Valid as
 * long as b->views. */
const struct tensor *bind_rows(struct binder *b, const struct tensor *t, uint64_t first,
                               uint64_t n);

/* Returns @n ones, F32: the weights of a norm that has none. The same object for the same @n, valid
 * as long as b->views. */
const struct tensor *bind_ones(struct binder *b, uint64_t n);

/* Returns @t, whose format has no blocks, as a tensor of one row. */
const struct tensor *bind_flat(struct binder *b, const struct tensor *t);

/* Binds a tensor that the caller checks; NULL: there is none. */
const struct tensor *bind_any(struct binder *b, const char *name);

/* Marks the tensors whose names begin with @prefix, or blk.@block., as ignored on purpose. */
void bind_ignore(struct binder *b, const char *prefix);
void bind_skip(struct binder *b, uint32_t block);

/* For a file that holds blocks alone: leaves out the blocks from @first on, and every tensor
 * outside blocks. */
void bind_only_blocks(struct binder *b, uint32_t first);

/* Checks that every tensor of the file was bound or ignored. */
void bind_rest(struct binder *b);
