#pragma once

/* quantised - matrices whose codes, scales and zero points are tensors of their own: FP8, MXFP4,
 * NVFP4, and integers as GPTQ, AWQ and compressed-tensors write them. */

#include "base/repack.h"
#include "checkpoint/safetensors.h"

struct reader;

/* A matrix. */
struct quantised {
    /* its name, as if it were not quantised */
    char name[ST_NAME_MAX + 1];
    struct repack how;
    /* by enum repack_part; NULL: none */
    const struct st_tensor *part[REPACK_PARTS];
    uint64_t n_rows, n_in;
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
