/* fake_fast - products without cuBLASLt: on the CPU, when their turn comes in the stream of
 * fake_api.c. */

#include <stdio.h>
#include <stdlib.h>
#include "base/mathx.h"
#include "base/util.h"
#include "engine/cuda/fast_api.h"
#include "tests/engine/cuda/fake_api.h"

struct plan {
    struct fast_shape shape;
    uint32_t n_rows;
};

static uint64_t n_asked;

static void multiply_now(const void *args) {
    const struct fast_product *p = args;
    uint32_t n_in = p->shape.n_in;
    float alpha = *p->alpha, beta = *p->beta;
    float *w = malloc(n_in * sizeof(*w)), *x = malloc((size_t)p->n_rows * n_in * sizeof(*x));

    if (!w || !x)
        abort();
    for (size_t i = 0; i < (size_t)p->n_rows * n_in; i++)
        x[i] = mx_half_to_float(p->x[i]);
    for (uint32_t o = 0; o < p->shape.n_out; o++) {
        for (uint32_t k = 0; k < n_in; k++)
            w[k] = mx_half_to_float(p->w[(size_t)o * n_in + k]);
        for (uint32_t r = 0; r < p->n_rows; r++) {
            float *y = p->y + (size_t)r * p->shape.n_out + o, sum = 0;

            for (uint32_t k = 0; k < n_in; k++)
                sum += w[k] * x[(size_t)r * n_in + k];
            sum = sum * alpha + (p->bias ? p->bias[o] : 0);
            *y = beta != 0 ? sum + beta * *y : sum; /* y may be anything */
        }
    }
    free(w);
    free(x);
}

static int open_library(void **library, char *why, size_t size) {
    if (fake_cuda.no_library || fake_call()) {
        snprintf(why, size, "no libcublasLt.so.13 or .12");
        return FAST_REFUSED;
    }
    snprintf(why, size, "a fake library");
    *library = malloc(1);
    fake_cuda.n_live++;
    return 0;
}

static void free_one(void *p) {
    free(p);
    fake_cuda.n_live--;
}

static int plan(void *library, const struct fast_shape *shape, uint32_t n_rows, void **out) {
    struct plan *p = malloc(sizeof(*p));

    if (!p || (fake_cuda.refuse_products && shape->n_out % 128)) {
        free(p);
        return FAST_REFUSED;
    }
    *p = (struct plan){*shape, n_rows};
    *out = p;
    fake_cuda.n_live++;
    return 0;
}

static void plan_free(void *library, void *plan) {
    free_one(plan);
}

static int multiply(void *library, void *plan, const struct fast_product *p, void *stream) {
    const struct plan *expect = plan;
    int r = fake_call();

    if (r)
        return r;
    if (expect->shape.n_out != p->shape.n_out || expect->shape.n_in != p->shape.n_in ||
        expect->shape.bias != (p->bias != NULL) || p->n_rows > expect->n_rows || !p->workspace ||
        (uintptr_t)p->w % 64 || (uintptr_t)p->x % 64 || (uintptr_t)p->y % 64) {
        fprintf(stderr, "fake fast: a product that is not as it was planned\n");
        abort();
    }
    if (fake_cuda.refuse_products && n_asked++ % 3 == 0)
        return FAST_REFUSED;
    fake_cuda.n_products++;
    fake_enqueue(multiply_now, p, sizeof(*p));
    return 0;
}

static const struct fast_api fake = {
    .open = open_library,
    .close = free_one,
    .plan = plan,
    .plan_free = plan_free,
    .multiply = multiply,
};

const struct fast_api *fast_api(void) {
    return &fake;
}
