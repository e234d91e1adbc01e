#pragma once

/* quantised - matrices whose codes, scales and zero points are tensors of their own: FP8, MXFP4,
 * NVFP4, and integers as GPTQ, AWQ and compressed-tensors write them. */

#include "base/gguf_build.h"
#include "checkpoint/safetensors.h"

struct reader;

/* A matrix, or a stack of equal ones. */
struct quantised {
    /* its name, as if it were not quantised */
    char name[ST_NAME_MAX + 1];
    struct repack how;
    /* by enum repack_part; NULL: none */
    const struct st_tensor *part[REPACK_PARTS];
    /* sides of a matrix */
    uint64_t n_rows, n_in;
    /* 0: no stack, but one matrix; the parts of those of a stack follow each other */
    uint64_t n_stack;
    /* factor of all values; 0: none */
    float factor;
};

/* Kinds of tensors of a folder. */
enum { QUANTISED_NO, QUANTISED_MATRIX, QUANTISED_COMPANION };

/* Reads the rule of config.json, and refuses methods that are not supported by their names. */
int quantised_read_rule(struct reader *r);
/* Finds out whether @t has the codes of a matrix, which *out is then, or belongs to one. Returns
 * QUANTISED_*, or -EINVAL with the reason. */
int quantised_find(struct reader *r, const struct st_tensor *t, struct quantised *out);
/* Finds rows [from, from + n) of one matrix: their layout *how, and the places of its parts.
 * Returns 0; -EINVAL: they share a word or a scale with others, or belong to two matrices. */
int quantised_slice(const struct quantised *q, uint64_t from, uint64_t n, struct repack *how,
                    struct gguf_piece part[REPACK_PARTS]);

/* The parts of a matrix in memory. */
struct quantised_parts {
    struct tensor t;
    const uint8_t *part[REPACK_PARTS];
};

/* Reads the parts of @q, which is no stack and stays while they are used. Returns 0 or -errno. */
int quantised_read_parts(const struct reader *r, const struct quantised *q,
                         struct quantised_parts *out);
void quantised_free_parts(struct quantised_parts *p);
/* Returns the format of 16 bits to which values are rounded where a matrix is copied. */
enum tensor_type quantised_halves(const struct quantised *q);
/* Writes a row of values, times the factor of @q, in the format of quantised_halves(). */
void quantised_store_halves(const struct quantised *q, const float *value, uint8_t *out);
