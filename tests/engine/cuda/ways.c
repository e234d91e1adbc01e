#include "tests/engine/cuda/ways.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/mathx.h"
#include "base/rng.h"
#include "engine/archs.h"
#include "engine/backend.h"
#include "engine/cuda/kernels.h"
#include "engine/experts.h"
#include "engine/ops/sparse/kernels_sparse.h"
#include "engine/picks.h"
#include "engine/sparse.h"
#include "tests/engine/cuda/fake_find.h"

static void keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct trace *t = ctx;

    if (s != t->subject)
        return;
    t->at[pos] = (struct driver_out){out->token, out->logprob, out->digest};
    if (logits)
        memcpy(t->logits + (size_t)pos * t->n_vocab, logits, t->n_vocab * sizeof(float));
}

static void random_tokens(int32_t *t, uint32_t n, uint32_t n_vocab, uint64_t seed) {
    struct rng r = {seed};

    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)rng_below(&r, n_vocab);
}

/* Does what the disk tier does over a restart: moves snapshot @from of host memory to @to, after
 * @n_tokens, and overwrites the old place. */
static void move_snapshot(struct driver *d, uint32_t to, uint32_t from, uint32_t n_tokens) {
    uint8_t *src = engine_host_snapshot(d->engine, from);
    void *dst = engine_host_snapshot(d->engine, to);

    cr_assert(src && dst && src != dst && d->info->state_bytes > 0);
    memcpy(dst, src, d->info->state_bytes);
    memset(src, 0x5A, d->info->state_bytes);
    engine_set_snapshot(d->engine, to, n_tokens);
}

/* Computes rows and forgets them, as after a wrong draft. */
static void go_back(struct driver *d, struct driver_seq *s, uint32_t n) {
    uint32_t more = MIN(s->n_prompt - 2 * n, n);

    driver_step(d, &(struct driver_part){s, n}, 1);
    driver_save(d, s, 1);
    driver_step(d, &(struct driver_part){s, more}, 1);
    if (d->opts.host_kv_bytes > 0)
        move_snapshot(d, 0, 1, n);
    driver_load(d, s, d->opts.host_kv_bytes > 0 ? 0 : 1, n);
}

void ways_run(const char *path, const char *backend, const struct way *w, struct trace *t) {
    struct driver_opts o = {.backend = backend,
                            .path = path,
                            .n_pages = 100,
                            .on_out = keep,
                            .ctx = t,
                            .max_rows = 128,
                            .max_wants = 128,
                            .max_seqs = NEIGHBOURS + 1,
                            .n_snapshots = w->back ? 2 : 0,
                            .host_kv_bytes = w->host_kv_bytes,
                            .host_experts = w->host_experts,
                            .device_layers = w->device_layers,
                            .experts_fd = w->placed_fd,
                            .keeps_place = w->placed_fd > 0,
                            .fetches_experts = w->fetches,
                            .n_threads = w->n_threads,
                            .kv_type = w->kv_type,
                            .shuffle = 3};
    struct driver_seq *all[NEIGHBOURS + 1];
    int32_t tokens[PROMPT], forced[OUTPUTS];
    struct err err = {0};
    struct driver d;

    setenv("WEFT_CUDA_GRAPHS", w->graphs ? "1" : "0", 1);
    setenv("WEFT_CUDA_FUSE", w->fuse, 1);
    fake_find()->order = w->order;
    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s", err.message);
    t->n_vocab = d.info->n_vocab;
    t->logits = calloc((size_t)LONGEST * t->n_vocab, sizeof(float));
    random_tokens(tokens, PROMPT, t->n_vocab, w->seed ? w->seed : 8);
    random_tokens(forced, OUTPUTS, t->n_vocab, 9);
    t->subject = all[0] = driver_add(&d, tokens, PROMPT, OUTPUTS, NULL);
    all[0]->every_row = true;
    all[0]->forced = w->forced ? forced : NULL;
    for (uint32_t i = 1; i <= w->n_neighbours; i++) {
        random_tokens(tokens, PROMPT, t->n_vocab, 40 + i);
        all[i] = driver_add(&d, tokens, i, OUTPUTS, NULL);
        driver_prefill(&d, all[i], 0);
    }
    if (w->back)
        go_back(&d, all[0], w->back);
    driver_prefill(&d, all[0], w->chunk);
    driver_decode(&d, all, w->n_neighbours + 1, OUTPUTS - 1, w->overlap);
    for (uint32_t i = 0; i <= w->n_neighbours; i++)
        driver_drop(&d, all[i]);
    driver_close(&d);
    fake_find()->order = 0;
}

/* |a - b| / |b| */
static double distance_of(const float *a, const float *b, uint32_t n) {
    double d = 0, norm = 0;

    for (uint32_t i = 0; i < n; i++) {
        double x = (double)a[i], y = (double)b[i];

        d += (x - y) * (x - y);
        norm += y * y;
    }
    d = sqrt(d / norm);
    return isnan(d) ? INFINITY : d;
}

double ways_distance(const struct trace *a, const struct trace *b) {
    double worst = 0;

    for (uint32_t r = 0; r + 1 < LONGEST; r++) {
        size_t at = (size_t)r * a->n_vocab;

        worst = fmax(worst, distance_of(a->logits + at, b->logits + at, a->n_vocab));
    }
    return worst;
}

/* Router logits of the reference, by position, then layer (its prompt is computed row by row). They
 * replace the logits under test, so that both pick the same experts with the same weights.
 * Otherwise a last pick that is closer to the next best than the rounding of activations would
 * become another expert, which changes all rows that attend to it; and weights are exponentials of
 * rounded numbers. */
static struct {
    float logits[LONGEST * 8][40];
    uint32_t n, n_expert, n_layer, seen[LONGEST];
    /* the largest distance of a row's logits before replacement */
    double worst;
    /* action of experts_pick(); n: number of its calls */
    enum { LEAVE, RECORD, IMPOSE } host;
} router;

void __real_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out);
void __wrap_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out);

/* Replaces experts_pick() when linked. */
void __wrap_experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out) {
    if (router.host != LEAVE) {
        float *right = router.logits[router.n++];

        cr_assert(router.n <= ARRAY_SIZE(router.logits) && r->n <= ARRAY_SIZE(router.logits[0]));
        router.n_expert = r->n;
        if (router.host == IMPOSE)
            router.worst = fmax(router.worst, distance_of(logits, right, r->n));
        memcpy(router.host == IMPOSE ? logits : right, router.host == IMPOSE ? right : logits,
               r->n * sizeof(float));
    }
    __real_experts_pick(logits, r, out);
}

/* Keys that an indexer chose for the reference's rows, which replace the device's choice. Where
 * scores of blocks are closer than the rounding of queries, the device may choose another block. */
static struct {
    uint32_t seen[LONGEST * 8][LONGEST / 32 + 1]; /* bits of positions; by position, then layer */
    uint32_t n, n_layer, at[LONGEST];
    /* blocks that only CUDA chose; all chosen blocks */
    uint32_t n_other, n_chosen;
    /* the next layer has an indexer of its own: it does not see what another one chose */
    bool own;
} chosen;

void __real_sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score,
                       uint32_t *seen);
void __wrap_sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score,
                       uint32_t *seen);

/* Replaces sparse_see() when linked. */
void __wrap_sparse_see(const struct sparse_shape *s, uint32_t pos, const float *score,
                       uint32_t *seen) {
    __real_sparse_see(s, pos, score, seen);
    if (router.host == LEAVE)
        return;
    cr_assert(chosen.n < ARRAY_SIZE(chosen.seen) && pos < LONGEST);
    memcpy(chosen.seen[chosen.n++], seen, (pos / 32 + 1) * sizeof(*seen));
}

static void impose_keys(const struct sparse_args *a) {
    for (uint32_t r = 0; r < a->of.batch->n_rows; r++) {
        uint32_t pos = a->of.batch->pos[r], layer = chosen.at[pos]++, n = 0;
        uint32_t *pick = (uint32_t *)a->pick + (size_t)r * a->n_best;

        cr_assert(layer < chosen.n_layer && a->row0 == 0);
        const uint32_t *seen = chosen.seen[pos * chosen.n_layer + layer];
        for (uint32_t i = 0; i < a->n_pick[r]; i++) {
            uint32_t at = pick[i] * a->block;

            chosen.n_other += !(seen[at / 32] >> at % 32 & 1);
            chosen.n_chosen++;
        }
        for (uint32_t at = 0; at + a->block <= pos + 1; at += a->block)
            if (seen[at / 32] >> at % 32 & 1)
                pick[n++] = at / a->block;
        cr_assert_eq(n, a->n_pick[r], "position %u", pos);
    }
}

/* on_launch of fake_api.h. */
static void impose(const char *kernel, uint64_t number, void *args) {
    struct route_args *a = args;

    (void)number;
    if (strcmp(kernel, "choose_blocks") == 0)
        chosen.own = true;
    if (strncmp(kernel, "attend_sparse", strlen("attend_sparse")) == 0 && chosen.own) {
        impose_keys(args);
        chosen.own = false;
    }
    if (strcmp(kernel, "route") != 0 || a->table) /* picks of a table are not computed */
        return;
    cr_assert(a->n_expert == router.n_expert);
    for (uint32_t r = 0; r < a->batch->n_rows; r++) {
        uint32_t pos = a->batch->pos[r], layer = router.seen[pos]++;
        float *got = (float *)a->logits + (size_t)r * a->n_expert;
        float back = 1 / a->in_scale; /* the reference's logits are already scaled */

        cr_assert(layer < router.n_layer);
        const float *right = router.logits[pos * router.n_layer + layer];
        for (uint32_t e = 0; e < a->n_expert; e++)
            got[e] *= a->in_scale;
        router.worst = fmax(router.worst, distance_of(got, right, a->n_expert));
        for (uint32_t e = 0; e < a->n_expert; e++)
            got[e] = right[e] * back;
    }
}

/* Runs the reference, row by row; records its router logits, or replaces those of the host's
 * experts. */
static void run_reference(const char *path, bool record, struct kv_formats kv_type,
                          struct trace *t) {
    const struct way slow = {.chunk = 1, .forced = true, .fuse = "0", .kv_type = kv_type};

    router.n = chosen.n = 0;
    router.worst = 0;
    router.host = record ? RECORD : IMPOSE;
    ways_run(path, "reference", &slow, t);
    router.host = LEAVE;
    router.n_layer = router.n / (LONGEST - 1);
    chosen.n_layer = chosen.n / (LONGEST - 1);
    cr_assert(router.n == router.n_layer * (LONGEST - 1), "%s", path);
}

/* 24 and 15 rows, then one: kernels for many rows, wide and normal attention, kernels for one
 * row. */
static const struct way in_chunks = {.chunk = 24, .forced = true, .fuse = "1"};

/* Expects rows of CUDA within @limit of @right, the result of run_reference(), and router logits
 * within @router_limit. */
static void check_cuda(const char *name, const char *path, const struct way *way,
                       const struct trace *right, double limit, double router_limit) {
    struct trace got = {0};

    router.worst = 0;
    memset(router.seen, 0, sizeof(router.seen));
    memset(chosen.at, 0, sizeof(chosen.at));
    chosen.n_other = chosen.n_chosen = 0;
    fake_find()->on_launch = impose;
    ways_run(path, "cuda", way, &got);
    fake_find()->on_launch = NULL;
    double d = ways_distance(&got, right);
    cr_expect(d < limit, "%s: %g", name, d);
    cr_expect(router.n_layer == 0 || router.worst < router_limit, "%s: router %g", name,
              router.worst);
    cr_expect(chosen.n_other * 20 <= chosen.n_chosen, "%s: %u of %u blocks are others", name,
              chosen.n_other, chosen.n_chosen);
    cr_expect(chosen.n_layer == 0 || chosen.n_chosen > 0);
    for (uint32_t r = 0; r + 1 < LONGEST; r++)
        cr_expect(router.seen[r] == router.n_layer, "%s: position %u", name, r);
    free(got.logits);
}

void ways_near_reference(const char *name, const char *path, double limit) {
    ways_near_reference_beside(name, path, limit, 0, 0);
}

void ways_near_reference_in(const char *name, const char *path, double limit,
                            struct kv_formats kv_type) {
    struct way way = in_chunks;
    struct trace right = {0};

    way.kv_type = kv_type;
    run_reference(path, true, kv_type, &right);
    check_cuda(name, path, &way, &right, limit, fmax(limit, 1e-2));
    free(right.logits);
}

void ways_near_reference_beside(const char *name, const char *path, double limit,
                                uint32_t host_experts, int placed_fd) {
    bool beside = host_experts || placed_fd;
    struct way way = in_chunks;
    struct trace right = {0};

    way.host_experts = host_experts;
    way.placed_fd = placed_fd;
    run_reference(path, true, way.kv_type, &right);
    check_cuda(name, path, &way, &right, limit, fmax(limit, 1e-2) * (beside ? 4 : 1));
    free(right.logits);
}

/* Writes a copy of @path whose matrices of floats are rounded to half precision. */
static void save_halved(const char *path, char out[64]) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err = {0};
    int r = gguf_open(&file, path, &err), fd;

    cr_assert(r == 0, "%s", err.message);
    size_t n = gguf_bytes(file);
    uint8_t *bytes = malloc(n);
    FILE *f = fopen(path, "rb");
    cr_assert(bytes && f && fread(bytes, 1, n, f) == n);
    fclose(f);
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct tensor *t = gguf_tensor(file, i);

        for (size_t k = 0; t->n_dims > 1 && t->format->type == TENSOR_F32 && k < t->n_bytes;
             k += sizeof(float)) {
            float x;

            memcpy(&x, bytes + t->file_offset + k, sizeof(x));
            x = mx_half_to_float(mx_float_to_half(x));
            memcpy(bytes + t->file_offset + k, &x, sizeof(x));
        }
    }
    snprintf(out, 64, "/tmp/weft-halved-XXXXXX");
    fd = mkstemp(out);
    f = fd < 0 ? NULL : fdopen(fd, "wb");
    cr_assert(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    free(bytes);
}

void ways_near_halved(const char *name, const char *path) {
    struct trace right = {0}, halved = {0};
    char copy[64];

    run_reference(path, true, in_chunks.kv_type, &right);
    save_halved(path, copy);
    run_reference(copy, false, in_chunks.kv_type, &halved);
    unlink(copy);
    double d = ways_distance(&halved, &right), of_router = router.worst;
    cr_expect(d > 0 && d < 0.05, "%s: rounding alone moves logits by %g", name, d);
    check_cuda(name, path, &in_chunks, &right, 1.5 * d, 1.5 * of_router);
    free(right.logits);
    free(halved.logits);
}

static void keep_digest(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                        const float *logits) {
    uint64_t *digest = ctx;

    digest[pos] = out->digest;
}

void ways_long(const char *path, uint32_t n, uint32_t chunk, uint64_t *digest) {
    const struct driver_opts o = {.backend = "cuda",
                                  .path = path,
                                  .max_rows = n,
                                  .max_seqs = 1,
                                  .on_out = keep_digest,
                                  .ctx = digest,
                                  .shuffle = 3};
    CLEANUP(freep) int32_t *token = malloc(n * sizeof(*token));
    struct err err = {0};
    struct driver d;
    int r = driver_open(&d, &o, &err);

    cr_assert(r == 0 && token, "%s", err.message);
    random_tokens(token, n, d.info->n_vocab, 5);
    struct driver_seq *s = driver_add(&d, token, n, 1, NULL);
    cr_assert(s);
    s->every_row = true;
    driver_prefill(&d, s, chunk);
    driver_drop(&d, s);
    driver_close(&d);
}

void ways_golden(const char *name, char path[TEST_DATA_PATH]) {
    test_data_file(path, "golden", name, ".gguf");
}

const struct way ways_back[4] = {
    {.name = "back", .chunk = 16, .back = 2, .fuse = "0"},
    {.name = "in company, as graphs", .chunk = 35, .n_neighbours = 2, .graphs = true, .fuse = "1"},
    {.name = "overlapped, other order of threads",
     .chunk = 5,
     .n_neighbours = 3,
     .graphs = true,
     .overlap = true,
     .fuse = "1",
     .order = 77},
    {.name = "back, from host memory",
     .chunk = 16,
     .back = 15,
     .host_kv_bytes = 1 << 20,
     .graphs = true,
     .fuse = "1"},
};

const struct way ways_in_batches[2] = {
    {.name = "in company, as graphs", .chunk = 35, .n_neighbours = 4, .graphs = true, .fuse = "1"},
    {.name = "overlapped, other order of threads",
     .chunk = 9,
     .n_neighbours = NEIGHBOURS,
     .graphs = true,
     .overlap = true,
     .fuse = "1",
     .order = 77},
};

void ways_compare(const char *path, const struct way *ways, size_t n) {
    const struct way at_once = {.fuse = "0",
                                .host_experts = ways[0].host_experts,
                                .device_layers = ways[0].device_layers,
                                .placed_fd = ways[0].fetches ? 0 : ways[0].placed_fd};
    struct trace first = {0}, other = {0};

    ways_run(path, "cuda", &at_once, &first);
    for (size_t i = n - FEW(n); i < n; i++) {
        ways_run(path, "cuda", &ways[i], &other);
        for (uint32_t r = 0; r + 1 < LONGEST; r++) {
            cr_expect(first.at[r].digest && first.at[r].digest == other.at[r].digest,
                      "%s: position %u", ways[i].name, r);
            cr_expect(first.at[r].token == other.at[r].token, "%s: position %u", ways[i].name, r);
        }
        free(other.logits);
    }
    free(first.logits);
}

bool ways_open(const char *path) {
    const struct driver_opts o = {
        .backend = "cuda", .path = path, .max_rows = 20, .n_pages = 8, .max_seqs = 2};
    struct err err = {0};
    struct driver d;
    int r;

    setenv("WEFT_CUDA_CHECK", "1", 1);
    fake_find()->n_calls = 0;
    r = driver_open(&d, &o, &err);
    if (r == 0)
        driver_close(&d);
    cr_expect(r == 0 || r == -EIO || err.message[0]);
    cr_expect(fake_find()->n_live == 0, "%d left", fake_find()->n_live);
    return r == 0;
}

int ways_placed(const char *path, uint32_t every, bool hosts, bool whole) {
    int fd = memfd_create("experts", MFD_CLOEXEC);
    struct engine_opts o = {0};
    uint32_t bits[64] = {0};
    struct gguf *read;
    struct model m;
    struct err err;
    struct picks k;

    cr_assert(fd > 0 && gguf_open(&read, path, &err) == 0);
    o.file = read;
    cr_assert(arch_read(&m, &o, false, &err) == 0);
    cr_assert(m.shape.n_layer * host_words(&m.shape) <= ARRAY_SIZE(bits));
    for (uint32_t l = 0; l < m.shape.n_layer; l++)
        for (uint32_t e = 0; e < m.shape.n_expert; e++)
            if (((e + l) % every == 0) == hosts || (whole && l + 1 == m.shape.n_layer))
                bits[l * host_words(&m.shape) + e / 32] |= 1u << e % 32;
    picks_open(&k, fd, read, &m.shape);
    cr_assert(k.head != NULL);
    picks_place(&k, bits);
    picks_close(&k);
    model_deinit(&m);
    gguf_free(read);
    return fd;
}

int ways_try_steps(const struct engine_opts *o, uint32_t n_steps, uint32_t *n_open,
                   struct engine_info *info, struct err *err) {
    static char note[1000];
    struct engine *e = NULL;
    int r = engine_new(&e, o, err);

    *n_open = fake_find()->n_calls;
    for (uint64_t step = 1; step <= n_steps && r == 0; step++) {
        struct engine_result result;

        r = fake_run_row(e, step, NULL, &result);
    }
    if (r == 0) {
        *info = *engine_info(e);
        snprintf(note, sizeof(note), "%s", info->note);
        info->note = note;
    }
    engine_free(e);
    return r;
}

void ways_fail_calls(const struct engine_opts *o, uint32_t n_waits) {
    struct fake_cuda *fake = fake_find();
    struct engine_info info;
    struct err err = {0};
    uint32_t n_open, opened;

    fake->n_calls = 0;
    cr_assert(ways_try_steps(o, 2, &n_open, &info, &err) == 0, "%s", err.message);
    uint32_t n = fake->n_calls - n_waits;
    /* test_backend.c covers all calls of opening */
    for (uint32_t i = 1; i <= n; i += i < n_open ? 15 : 1) {
        fake->n_calls = 0;
        fake->fail_at = i;
        fake->sticky = i % 2;
        fake->failed_capture = false;
        err = (struct err){0};
        int r = ways_try_steps(o, 2, &opened, &info, &err);
        cr_expect(r < 0 || fake->failed_capture, "call %u", i);
        cr_expect(r == 0 || r == -EIO || err.message[0], "call %u: %d without a word", i, r);
        cr_expect(fake->n_live == 0, "call %u: %d left", i, fake->n_live);
    }
    fake->fail_at = 0;
}
