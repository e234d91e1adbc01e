#pragma once

/*
 * fast_api - products of matrices by cuBLASLt, as a table like cuda_api.h: fast_api.c looks for the
 * library when it is asked to, tests put another table in its place
 * (tests/engine/cuda/fake_fast.c).
 *
 * Functions return 0, FAST_REFUSED, or another error number; pointers in struct fast_product are
 * the device's.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAST_REFUSED (-1) /* the library has nothing for this shape; nothing was done */

/* n_in: also the distance of rows of both operands, a multiple of 64. */
struct fast_shape {
    uint32_t n_out, n_in;
    bool bias;
};

/* y = alpha W x + beta y + bias: [n_rows][n_out] from half precision [n_out][n_in] and
 * [n_rows][n_in]. */
struct fast_product {
    struct fast_shape shape;
    uint32_t n_rows;
    const uint16_t *w, *x;
    const float *bias, *alpha, *beta;
    float *y;
    void *workspace; /* FAST_WORKSPACE bytes */
};

#define FAST_WORKSPACE ((size_t)32 << 20)

struct fast_api {
    /* Not there: FAST_REFUSED. *why: which library, or what is wrong. */
    int (*open)(void **library, char *why, size_t size);
    void (*close)(void *library);
    /* How products of @shape with up to @n_rows rows are done. */
    int (*plan)(void *library, const struct fast_shape *shape, uint32_t n_rows, void **plan);
    void (*plan_free)(void *library, void *plan);
    int (*multiply)(void *library, void *plan, const struct fast_product *p, void *stream);
};

/* cuBLASLt's (fast_api.c), or the tests'. */
const struct fast_api *fast_api(void);
