#pragma once

/*
 * bind - finds the tensors of a model and checks their shapes against the hyperparameters. Used by
 * engine/arch. The first failure sticks: later calls return NULL.
 *
 * A tensor that was not asked for is a failure too (bind_rest): a scale or a bias that is left out
 * would give a model that almost works.
 */

#include "base/err.h"
#include "base/gguf.h"

/* A tensor that must not be asked for, that may be missing, or that must be there. */
enum bind_need { BIND_NEVER, BIND_MAY, BIND_MUST };

/* Invariant: r is 0 or the first error, whose text is in *err; used[i] means that tensor i was
 * asked for by name. */
struct binder {
    const struct gguf *file;
    const char *arch; /* for messages */
    bool *used;       /* [gguf_n_tensors] */
    struct err *err;
    int r;                           /* 0, or the first error */
    uint64_t weight_bytes, n_params; /* sums over the tensors that were found */
    struct view *views;              /* made here; the caller takes them over */
};

/* A part of a tensor under the whole's name, or a tensor with its scale. */
struct view {
    struct view *next;
    struct tensor tensor;
};

/* Accepts NULL. */
struct view *views_free(struct view *v);

/* 0 or -ENOMEM. Nothing of @file is read yet; @file, @arch and @err stay the caller's. */
int bind_init(struct binder *b, const struct gguf *file, const char *arch, struct err *err);
/* The tensors that were found stay valid: they are the file's. */
void bind_deinit(struct binder *b);

/* W of y = W x: rows of @n_in values, @n_out of them. Any format. NVFP4 comes with tensor.scale
 * where the file has NAME.scale beside NAME.weight; NAME.input_scale, for devices that multiply
 * activations of 4 bits, is not read. */
const struct tensor *bind_matrix(struct binder *b, enum bind_need need, uint64_t n_in,
                                 uint64_t n_out, const char *fmt, ...) PRINTF(5, 6);
/* @n such matrices, one behind the other in a tensor of three dimensions. */
const struct tensor *bind_matrices(struct binder *b, enum bind_need need, uint64_t n_in,
                                   uint64_t n_out, uint64_t n, const char *fmt, ...) PRINTF(6, 7);
/* @n values, F32: norms and biases. */
const struct tensor *bind_vector(struct binder *b, enum bind_need need, uint64_t n, const char *fmt,
                                 ...) PRINTF(4, 5);
/* @n_rows such vectors, one behind the other in a tensor of two dimensions. */
const struct tensor *bind_vectors(struct binder *b, enum bind_need need, uint64_t n,
                                  uint64_t n_rows, const char *fmt, ...) PRINTF(5, 6);

/* @n_rows rows of @n integers, I32; their values are the caller's to check. */
const struct tensor *bind_table(struct binder *b, uint64_t n, uint64_t n_rows, const char *fmt, ...)
    PRINTF(4, 5);

/* Rows [first, first + n) of @t, which has as many; NULL stays NULL. Lives as long as b->views. */
const struct tensor *bind_rows(struct binder *b, const struct tensor *t, uint64_t first,
                               uint64_t n);

/* The values of @t, which has no blocks, as one row. */
const struct tensor *bind_flat(struct binder *b, const struct tensor *t);

/* A tensor that the caller checks, or NULL. */
const struct tensor *bind_any(struct binder *b, const char *name);

/* Tensors whose names begin with @prefix, or blk.@block., are left out on purpose: nothing is read
 * of them. */
void bind_leave(struct binder *b, const char *prefix);
void bind_skip(struct binder *b, uint32_t block);

/* For a file that holds blocks alone: leaves out the blocks from @first on, and every tensor
 * outside blocks. */
void bind_only_blocks(struct binder *b, uint32_t first);

/* Every tensor of the file has been asked for. */
void bind_rest(struct binder *b);
