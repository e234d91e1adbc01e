#pragma once

/*
 * several - runs of a model on several emulated devices, for the tests of both ways to divide it
 * (test_ranks.c, test_layers.c).
 */

#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/tiny_model.h"

/* The first of each kind, which goes the same ways. */
#define FEW(all) FEWER(all, 1)

/* LONG: devices that divide the layers compute it in parts of 192 and 128 rows. */
enum { PROMPT = 24, SHORT = 8, LONG = 320, OUTPUTS = 4, SEQS = 2 };

/* Two layers, of which the host may have an FFN. */
extern const struct tiny_model several_dense;
extern uint32_t several_device_layers; /* engine_opts, of the next runs; 0: all */

/* Results of each row of each sequence. */
struct trace {
    struct driver_seq *seq[SEQS];
    struct driver_out at[SEQS][LONG + OUTPUTS];
};

/* Results of a run of a few steps by the engine itself. */
struct outcome {
    uint64_t digest[2];
    float vector[64];      /* of the first step's first row */
    uint8_t page[1 << 14]; /* of host memory */
    size_t page_bytes;
    uint32_t n_pages;
    char isa[32], note[200];
};

/* A prompt in chunks of 17 rows and fewer, with @n_seqs of 2 one at once; then all decode, two
 * steps in flight. One alone has a short one in two chunks that are in flight at once, the first
 * without wants. */
void several_run(const char *path, const char *devices, enum engine_kv_type kv, uint32_t n_seqs,
                 struct trace *t);
/* A short prompt, whose sequence decodes beside all but the end of a LONG one, fed by the step that
 * is in flight; then both decode. */
void several_run_long(const char *path, const char *devices, struct trace *t);
/* The first position that differs, of all sequences one behind the other; UINT32_MAX: none. */
uint32_t several_difference(const struct trace *a, const struct trace *b);
/* Expects that two runs of @what had the same results, and the first one @last among them. */
void several_expect_equal(const struct trace *one, const struct trace *other,
                          const struct driver_out *last, const char *what);
/* Runs @m on one device and on @devices, which run apart as far as events let them and launch
 * graphs: the bits are the same. */
void several_compare(const struct tiny_model *m, const char *devices, enum engine_kv_type kv);
/* A wait of a stream for another's event is left out, the @number'th of a run of one sequence, or
 * of several_run_long(): whether the emulator sees it, where one of the devices is ahead. */
bool several_misses(const char *path, bool is_long, uint32_t number, const struct trace *right);
/* Opens; three rows, whose page goes to host memory and back to another one, then a row that sees
 * it. Returns the first error. */
int several_try(const char *path, const char *devices, const char *backend, struct outcome *out,
                struct err *err);
/* Opens on device 1 and on devices 0 and 1: results are the same, and with @pages what went to host
 * memory. */
void several_try_both(const char *path, bool pages, struct outcome *one, struct outcome *two);
/* A state in host memory is the same whatever devices had it: of value heads that lie in pieces,
 * and of such that do not. */
void several_move_states(void);
/* Each @stride-th call of two devices fails once, and each of the last 50. @n_waits: waits when
 * they are closed, which go unreported; more than @least captures are given up for it. */
void several_fail_calls(const char *path, uint32_t stride, uint32_t n_waits, uint32_t least);
/* One of them never finishes: the step is given up, and nothing waits for any. */
void several_hang(const char *path);
/* Asks what fits; n_pages 0: nothing. */
struct engine_fit several_fit(const char *path, const char *devices, struct err *err);
uint32_t several_pages(const char *path, const char *devices, struct err *err);
