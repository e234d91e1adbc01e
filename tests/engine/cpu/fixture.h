#pragma once

/* fixture - random weights of any format, and their panels, for tests and benchmarks of the
 * kernels. */

#include "engine/cpu/cpu.h"

struct fixture {
    struct tensor t;
    struct mat m;
};

/* Fills a matrix of @n_out rows of @n_in values with every bit pattern that a file may have. Scales
 * are limited, so that no value is huge. */
void fixture_init(struct fixture *f, enum tensor_type type, uint32_t n_in, uint32_t n_out,
                  uint64_t seed);
/* Fills every byte of the weights with @fill, except for scales in half precision, which are
 * limited. */
void fixture_extreme(struct fixture *f, uint8_t fill);
void fixture_deinit(struct fixture *f);

/* Fills @x with standard normal values. */
void fixture_normal(float *x, size_t n, uint64_t seed);

/* Returns activations of @n_rows rows in the form that matmul_run() takes, packed by kernels @k;
 * aligned. The caller frees them. */
uint8_t *fixture_acts(const struct cpu_kernels *k, enum acts_kind kind, const float *x,
                      uint32_t n_in, uint32_t n_rows);
