#pragma once

/*
 * ways - a whole model computed in several ways: by the reference backend and by CUDA, in chunks,
 * in company, as graphs, with other orders of threads. What came of one sequence is kept row by
 * row.
 */

#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/test_data.h"

/* The first of each kind, which goes the same ways. */
#define FEW(all) FEWER(all, 1)

enum { PROMPT = 40, OUTPUTS = 4, LONGEST = PROMPT + OUTPUTS, NEIGHBOURS = 6 };

/* How the subject is computed; chunk 0: the prompt at once. */
struct way {
    const char *name;
    uint32_t chunk, n_neighbours;
    bool graphs, overlap, forced;
    const char *fuse;
    uint64_t order, seed; /* of threads; of the tokens, 0: 8 */
    /* After so many rows of the prompt the subject's state is saved, and loaded again after the
     * next ones, which are then computed anew; 0: not. */
    uint32_t back;
    /* Of snapshots, whose bytes are moved by the test as the disk tier does; 0: they are in the
     * device's memory. */
    uint64_t host_kv_bytes;
    uint32_t host_experts, device_layers, n_threads; /* engine_opts; n_threads 0: 1 */
    struct kv_formats kv_type;
    int placed_fd; /* engine_opts.experts_fd, with keeps_place; or 0 */
    bool fetches;  /* engine_opts.fetches_experts; what the way is compared with has all experts */
};

/* Ways of models with states: in company, overlapped, as graphs; states that go back as after a
 * wrong draft, from either memory. */
extern const struct way ways_back[4];

/* Results of the subject's rows. */
struct trace {
    const struct driver_seq *subject;
    float *logits; /* [LONGEST][n_vocab] */
    uint32_t n_vocab;
    struct driver_out at[LONGEST];
};

/* @path on @backend; t->logits is the caller's to free. */
void ways_run(const char *path, const char *backend, const struct way *w, struct trace *t);
/* The largest |a - b| / |b| of a row. */
double ways_distance(const struct trace *a, const struct trace *b);
/* Rows on CUDA within @limit of the reference's. With experts the reference's router logits take
 * the place of CUDA's, and its choice of keys that of CUDA's, of which a twentieth may differ;
 * the logits must be within @limit or 1e-2 of them: of the golden files of gpt-oss
 * and glm4moe with 8 to 14 prompts each rows were within 5.1e-3 and router logits within 7.4e-3.
 * The test is linked with --wrap=experts_pick,--wrap=sparse_see. */
void ways_near_reference(const char *name, const char *path, double limit);
/* Judges rows with pages of @kv_type in the same way. */
void ways_near_reference_in(const char *name, const char *path, double limit,
                            struct kv_formats kv_type);
/* The same with the experts of the first @host_experts layers, or those that @placed_fd says,
 * computed by the host. Router logits
 * behind these, whose activations are rounded to eight bits, are within 4 @limit: of 7 experts
 * after one such layer 4.2e-2 were seen where logits were within 2e-2. */
void ways_near_reference_beside(const char *name, const char *path, double limit,
                                uint32_t host_experts, int placed_fd);
/* The same for models of so many layers that no limit holds for them: at most 1.5 times what the
 * reference's own rows and router logits move by when the file's matrices are rounded to half
 * precision, as CUDA's tiles are. Of the 27 layers of deepseek2-lite 3.4e-2 and 7.8e-2, where
 * rounding alone makes 2.7e-2 and 7.1e-2, at the same row. */
void ways_near_halved(const char *name, const char *path);
/* Beside others: as graphs; overlapped, in another order of threads. */
extern const struct way ways_in_batches[2];
/* CUDA in each way by bits against the prompt at once; all with the experts of the first where it
 * has them. Under a sanitizer in the last way. */
void ways_compare(const char *path, const struct way *ways, size_t n);
/* Computes a prompt of @n random tokens by @chunk, 0: at once. @digest: [n] of the rows' logits. */
void ways_long(const char *path, uint32_t n, uint32_t chunk, uint64_t *digest);
/* Writes the path of a model of the test data's golden/; fails the test without it. */
void ways_golden(const char *name, char path[TEST_DATA_PATH]);
/* Opens a model with the self-test and the proof. Returns false if it is refused. Nothing is
 * left. */
bool ways_open(const char *path);
/* Returns a file in which the host has each @every'th expert of a layer, from another one on in
 * each layer, or, without @hosts, all but these; with @whole also all of the last layer. */
int ways_placed(const char *path, uint32_t every, bool hosts, bool whole);
/* Opens an engine and computes @n_steps rows, one a step. Returns the first error. *n_open: calls
 * of the runtime up to the steps; *info: what is known behind them. */
int ways_try_steps(const struct engine_opts *o, uint32_t n_steps, uint32_t *n_open,
                   struct engine_info *info, struct err *err);
/* Lets one call of the runtime after the other fail, of each 15th while an engine opens and of all
 * in its first two steps: an error comes back, and nothing is left. */
void ways_fail_calls(const struct engine_opts *o);
