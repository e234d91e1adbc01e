#pragma once

/* fixture - random weights of any format, and their panels, for the tests and the benchmark of the
 * kernels. */

#include "engine/cpu/cpu.h"

struct fixture {
    struct tensor t;
    struct mat m;
};

/* A matrix of @n_out rows of @n_in values whose every bit pattern is as a file may have it. Scales
 * are sane, so that no value is huge. */
void fixture_init(struct fixture *f, enum tensor_type type, uint32_t n_in, uint32_t n_out,
                  uint64_t seed);
/* Every byte of the weights @fill, only the scales in half precision sane. */
void fixture_extreme(struct fixture *f, uint8_t fill);
void fixture_deinit(struct fixture *f);

/* Standard normal values. */
void fixture_normal(float *x, size_t n, uint64_t seed);

/* Activations of @n_rows rows as matmul_run() wants them, by @k; aligned, to be freed. */
uint8_t *fixture_acts(const struct cpu_kernels *k, enum acts_kind kind, const float *x,
                      uint32_t n_in, uint32_t n_rows);
