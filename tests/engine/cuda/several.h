#pragma once

/*
 * several - runs of a model on several emulated devices, for the tests of both ways to divide it
 * (test_ranks.c, test_layers.c).
 */

#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/tiny_model.h"

/* Selects the first of each kind of case that takes the same code paths. */
#define FEW(all) FEWER(all, 1)

/* LONG: devices that divide the layers compute it in two parts, of 192 and 128 rows. */
enum { PROMPT = 24, SHORT = 8, LONG = 320, OUTPUTS = 4, SEQS = 2 };

/* Two layers, of which the host may have an FFN. */
extern const struct tiny_model several_dense;
extern uint32_t several_device_layers; /* engine_opts.device_layers of the next runs; 0: all */

/* Results of each row of each sequence. */
struct trace {
    struct driver_seq *seq[SEQS];
    struct driver_out at[SEQS][LONG + OUTPUTS];
};

/* Results of a run of a few steps by the engine itself. */
struct outcome {
    uint64_t digest[2];
    /* vector of the first row of the first step */
    float vector[64];
    /* the page in host memory */
    uint8_t page[1 << 14];
    size_t page_bytes;
    uint32_t n_pages;
    char isa[32], note[200];
};

/* Runs a prompt in chunks of up to 17 rows; with @n_seqs 2, the prompt of one sequence in one
 * chunk. Then all decode, with two steps in flight. With one sequence, a short prompt comes first,
 * in two chunks that are in flight together, the first of them without wants. */
void several_run(const char *path, const char *devices, enum engine_kv_type kv, uint32_t n_seqs,
                 struct trace *t);
/* Runs a short prompt, whose sequence then decodes beside most of a LONG prompt, each token fed by
 * the step in flight; then both decode. */
void several_run_long(const char *path, const char *devices, struct trace *t);
/* Returns the index of the first position that differs, counted over all sequences; UINT32_MAX if
 * all are equal. */
uint32_t several_difference(const struct trace *a, const struct trace *b);
/* Expects that two runs of @what have equal results, among them @last of the first run. */
void several_expect_equal(const struct trace *one, const struct trace *other,
                          const struct driver_out *last, const char *what);
/* Runs @m on one device and on @devices, in orders that only events limit and with graphs, and
 * expects the same bits. */
void several_compare(const struct tiny_model *m, const char *devices, enum engine_kv_type kv);
/* Runs one sequence, or several_run_long(), without the @number-th wait of a stream for another's
 * event. Returns true if the result is wrong or a fault is reported while one of the devices is
 * ahead. */
bool several_misses(const char *path, bool is_long, uint32_t number, const struct trace *right);
/* Opens the model and computes three rows; copies their page to host memory and from there to
 * another page; computes a row that attends to it. Returns the first error. */
int several_try(const char *path, const char *devices, const char *backend, struct outcome *out,
                struct err *err);
/* Opens the model on device 1 and on devices 0 and 1, and expects equal results; with @pages also
 * equal pages in host memory. */
void several_try_both(const char *path, bool pages, struct outcome *one, struct outcome *two);
/* Expects equal states in host memory for every number of devices, for value heads that a rank has
 * in several pieces and for others. */
void several_move_states(void);
/* Lets each @stride-th call of two devices fail once, and each of the last 50. @n_waits: number of
 * waits at closing, whose errors are not reported. More than @least captures must be given up
 * because of it. */
void several_fail_calls(const char *path, uint32_t stride, uint32_t n_waits, uint32_t least);
/* Lets one of the devices hang: the step must fail, and nothing may wait for any device. */
void several_hang(const char *path);
/* Computes what fits in memory; n_pages 0: nothing. */
struct engine_fit several_fit(const char *path, const char *devices, struct err *err);
uint32_t several_pages(const char *path, const char *devices, struct err *err);
