#pragma once

/* fixture - random weights of any format, and their panels, for tests and benchmarks of the
 * kernels. */

#include "base/repack.h"
#include "engine/cpu/cpu.h"

struct fixture {
    struct tensor t;
    struct mat m;
    /* of fixture_groups() and fixture_fp8() */
    struct repack how;
    const uint8_t *part[REPACK_PARTS];
};

/* Fills a matrix of @n_out rows of @n_in values with every bit pattern that a file may have. Scales
 * are limited, so that no value is huge. */
void fixture_init(struct fixture *f, enum tensor_type type, uint32_t n_in, uint32_t n_out,
                  uint64_t seed);
/* Fills a matrix of 4-bit codes in groups of 128, with or without zero points of its own. The
 * fixture must not be moved. */
void fixture_groups(struct fixture *f, uint32_t n_in, uint32_t n_out, bool zeros);
/* Fills a matrix of FP8 with scales for blocks of 128 x 128, or for whole rows. The fixture must
 * not be moved. A code times its scale has eight significant bits, so that it is a number of BF16.
 * */
void fixture_fp8(struct fixture *f, uint32_t n_in, uint32_t n_out, bool blocks);
/* Packs the weights again, which the caller has changed. */
void fixture_pack(struct fixture *f);
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
