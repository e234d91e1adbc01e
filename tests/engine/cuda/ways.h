#pragma once

/*
 * ways - a whole model computed in several ways: by the reference backend and by CUDA, in chunks,
 * in company, with graphs, with other orders of threads. Results of one sequence are kept row by
 * row.
 */

#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/test_data.h"

/* Selects the first of each kind of case that takes the same code paths. */
#define FEW(all) FEWER(all, 1)

enum { PROMPT = 40, OUTPUTS = 4, LONGEST = PROMPT + OUTPUTS, NEIGHBOURS = 6 };

/* A way to compute the subject; chunk 0: the prompt in one step. */
struct way {
    const char *name;
    uint32_t chunk, n_neighbours;
    bool graphs, overlap, forced;
    const char *fuse;
    /* order of threads; seed of tokens, 0: 8 */
    uint64_t order, seed;
    /* Number of rows of the prompt after which the subject's state is saved; it is loaded after the
     * next rows, which are then computed again. 0: never. */
    uint32_t back;
    /* Bytes of host memory for snapshots, which the test moves as the disk tier does; 0: snapshots
     * are in the device's memory. */
    uint64_t host_kv_bytes;
    /* engine_opts; n_threads 0: 1 */
    uint32_t host_experts, device_layers, n_threads;
    struct kv_formats kv_type;
    /* engine_opts.experts_fd, with keeps_place; or 0 */
    int placed_fd;
    /* engine_opts.fetches_experts; the way that it is compared with has all experts */
    bool fetches;
};

/* Ways for models with states: in company, overlapped, with graphs; states that are restored as
 * after a wrong draft, from device and host memory. */
extern const struct way ways_back[4];

/* Results of the subject's rows. */
struct trace {
    const struct driver_seq *subject;
    /* [LONGEST][n_vocab] */
    float *logits;
    uint32_t n_vocab;
    struct driver_out at[LONGEST];
};

/* Runs the model @path on @backend; the caller frees t->logits. */
void ways_run(const char *path, const char *backend, const struct way *w, struct trace *t);
/* Returns the largest |a - b| / |b| of a row. */
double ways_distance(const struct trace *a, const struct trace *b);
/* Expects that rows on CUDA are within @limit of the reference's. For experts, the reference's
 * router logits replace CUDA's, and its choice of keys replaces CUDA's, of which a twentieth may
 * differ. Router logits must be within @limit or 1e-2: rows of the golden files of gpt-oss and
 * glm4moe, with 8 to 14 prompts each, were within 5.1e-3 and their router logits within 7.4e-3. The
 * test is linked with --wrap=experts_pick,--wrap=sparse_see. */
void ways_near_reference(const char *name, const char *path, double limit);
/* Does the same with pages of @kv_type. */
void ways_near_reference_in(const char *name, const char *path, double limit,
                            struct kv_formats kv_type);
/* Does the same while the host computes the experts of the first @host_experts layers, or those in
 * @placed_fd. Their activations are rounded to eight bits, so later router logits must be within 4
 * @limit: with 7 experts after one such layer, 4.2e-2 was seen while logits were within 2e-2. */
void ways_near_reference_beside(const char *name, const char *path, double limit,
                                uint32_t host_experts, int placed_fd);
/* Does the same for models with so many layers that no fixed limit fits. Distances may be at most
 * 1.5 times those by which the reference's own rows and router logits move when the file's matrices
 * are rounded to half precision, as CUDA's tiles are. For the 27 layers of deepseek2-lite, 3.4e-2
 * and 7.8e-2 were seen, where rounding alone gives 2.7e-2 and 7.1e-2, at the same row. */
void ways_near_halved(const char *name, const char *path);
/* Ways in company: with graphs; overlapped, in another order of threads. */
extern const struct way ways_in_batches[2];
/* Compares CUDA in each way, by bits, with the prompt in one step; if the first way names experts,
 * all use them. Under a sanitizer only the last way is run. */
void ways_compare(const char *path, const struct way *ways, size_t n);
/* Computes a prompt of @n random tokens in chunks of @chunk, 0: in one step. @digest: [n], of the
 * rows' logits. */
void ways_long(const char *path, uint32_t n, uint32_t chunk, uint64_t *digest);
/* Writes the path of a model in golden/ of the test data; fails the test if it is missing. */
void ways_golden(const char *name, char path[TEST_DATA_PATH]);
/* Opens a model with self-test and proof, and closes it. Returns false if it is refused. Expects
 * that all memory is freed. */
bool ways_open(const char *path);
/* Returns a file that places each @every-th expert of a layer on the host, starting with another
 * one in each layer, or, without @hosts, all except these; with @whole also all of the last
 * layer. */
int ways_placed(const char *path, uint32_t every, bool hosts, bool whole);
/* Opens an engine and computes @n_steps rows in as many steps. Returns the first error. *n_open:
 * number of calls of the runtime before the steps; *info: the engine's information after them. */
int ways_try_steps(const struct engine_opts *o, uint32_t n_steps, uint32_t *n_open,
                   struct engine_info *info, struct err *err);
/* Lets single calls of the runtime fail in turn: each 15th while an engine opens, all in its first
 * two steps but the last @n_waits, which wait for streams at closing. Expects an error, and that
 * all memory is freed. */
void ways_fail_calls(const struct engine_opts *o, uint32_t n_waits);
