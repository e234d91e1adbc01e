/*
 * linear - the products of the reference backend. They have a file of their own, so that a test can
 * put a function before them that rounds their input (tests/engine/test_bounds.c).
 */

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/cpus.h"
#include "base/thread.h"
#include "engine/formats/quant.h"
#include "engine/reference/reference.h"

#define MOST_PARTS 16u   /* most threads of a product */
#define LARGE (1u << 22) /* weights from which on several threads compute a product */

/* Part of a product that one thread computes: outputs [first, last). row: [n_in] scratch memory. */
struct part {
    const struct tensor *w, *bias;
    const float *x;
    float *y, *row;
    size_t first, last;
    uint32_t n_rows;
    pthread_t thread;
};

/* Computes a part of a product; the function of a thread. */
static void *compute_part(void *arg) {
    const struct part *p = arg;
    size_t n_in = p->w->ne[0], n_out = p->w->ne[1];

    for (size_t o = p->first; o < p->last; o++) {
        float plus = 0;

        if (p->bias)
            plus = ref_vector_at(p->bias, o);
        quant_decode_row(p->w, o, p->row);
        for (uint32_t r = 0; r < p->n_rows; r++)
            p->y[r * n_out + o] = host_dot(p->row, p->x + r * n_in, n_in) + plus;
    }
    return NULL;
}

/* Divides the outputs of large products among threads, because a worker waits at its start for the
 * proof of its device (engine/prove.h), which uses this backend. */
void ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias, const float *x,
                uint32_t n_rows, float *y) {
    size_t n_in = w->ne[0], n_out = w->ne[1];
    struct part part[MOST_PARTS];
    size_t n = n_in * n_out < LARGE ? 1 : MIN(cpus_usable(), MOST_PARTS), started = 0;
    float *rows = NULL;

    if (n > 1)
        rows = malloc((n - 1) * n_in * sizeof(*rows));
    assert(x != y && n_in > 0 && n_in <= b->row_width);
    if (!rows)
        n = 1;
    for (size_t i = 0; i < n; i++)
        part[i] = (struct part){.w = w,
                                .bias = bias,
                                .x = x,
                                .y = y,
                                .row = i ? rows + (i - 1) * n_in : b->row,
                                .first = n_out * i / n,
                                .last = n_out * (i + 1) / n,
                                .n_rows = n_rows};
    while (started + 1 < n &&
           thread_start(&part[started + 1].thread, NULL, compute_part, &part[started + 1]) == 0)
        started++;
    compute_part(&part[0]);
    for (size_t i = started + 1; i < n; i++) /* threads that could not be started */
        compute_part(&part[i]);
    for (size_t i = 1; i <= started; i++)
        pthread_join(part[i].thread, NULL);
    free(rows);
}
