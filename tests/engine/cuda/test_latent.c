/*
 * Tests latent attention on the CUDA backend, without a device. The reference backend gives the
 * expected logits; every division of a sequence into steps must give the same bits, also on pages
 * that another sequence filled.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/synth/synth.h"

/* Queries from a latent vector (q_rank), a dense layer, then experts; four layers of random
 * weights, each of which adds about 2e-3 of error. */
Test(cuda_latent, a_golden_file_is_near_the_reference) {
    char path[1024];

    ways_golden("deepseek2-mtp", path);
    ways_near_reference("deepseek2-mtp", path, 1e-2);
}

/* Queries without a latent vector, YaRN in the scores, experts by an unnormalised softmax; 27
 * layers. */
Test(cuda_latent, many_layers_add_up_what_rounding_does) {
    char path[1024];

    ways_golden("deepseek2-lite", path);
    ways_near_halved("deepseek2-lite", path);
}

/* Temperatures of queries from position 24 on. */
Test(cuda_latent, temperatures_are_near_the_reference) {
    char path[1024];

    ways_golden("mistral4", path);
    ways_near_halved("mistral4", path);
}

static void synth(const char *shape, const char *format, char path[64]) {
    const char *argv[] = {"synth", "--shape", shape, "--format", format, "-o", path, NULL};

    snprintf(path, 64, "/tmp/weft-latent-%d.gguf", (int)getpid());
    cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
}

/* GLM-4.7-Flash's latent vectors of 512 + 64 values and heads of 192 + 64 and 256 values; more
 * heads than the 16 queries of a group; DeepSeek V3's experts in groups. */
#define GLM                                                                                        \
    "glm-4.7-flash,n_layer=1,n_lead=0,n_embd=256,n_head=18,q_rank=256,n_ff=64,n_shared=64,"        \
    "n_vocab=300,n_expert=12,n_used=3,n_group=4"
#define SMALL                                                                                      \
    "glm-4.7-flash,n_layer=1,n_embd=64,n_head=3,head_dim=64,n_rot=32,q_rank=64,kv_rank=64,"        \
    "v_dim=32,n_ff=64,n_shared=64,n_dense=64,n_vocab=300,n_expert=4,n_used=2"

Test(cuda_latent, vectors_of_576_values_and_experts_in_groups_are_near_the_reference) {
    char path[64];

    synth(GLM, "Q4_K_M", path);
    ways_near_reference("glm", path, 6e-3);
    unlink(path);
}

/* One layer, so that only its own rounding counts: positions after the trained context, whose
 * scores YaRN scales. */
Test(cuda_latent, positions_stretched_by_yarn_are_near_the_reference) {
    char path[64];

    synth(SMALL ",factor=16,original=16", "Q8_0", path);
    ways_near_reference("yarn", path, 6e-3);
    unlink(path);
}

Test(cuda_latent, a_sequence_is_the_same_whatever_the_batch) {
    char path[1024], large[64];

    ways_golden("deepseek2-mtp", path);
    ways_compare(path, ways_in_batches, ARRAY_SIZE(ways_in_batches));
    synth(GLM, "Q4_K_M", large);
    ways_compare(large, ways_in_batches, 1);
    unlink(large);
}

Test(cuda_latent, what_it_does_not_compute_is_refused_by_name) {
    struct driver_opts o = {.backend = "cuda"};
    struct err err = {0};
    struct driver d;
    char path[64];

    synth(SMALL ",kv_rank=576", "Q8_0", path);
    o.path = path;
    cr_expect(driver_open(&d, &o, &err) == -EINVAL);
    cr_expect(strstr(err.message, "does not compute latent vectors of more than 512 values") !=
                  NULL,
              "%s", err.message);
    cr_expect(fake_find()->n_live == 0 && fake_find()->peak_bytes == 0, "nothing was allocated");
    unlink(path);
}

/* -- launches ---------------------------------------------------------------------------------- */

/* launches of expert_vec: of heads, and of picked experts; those that fetch weights early */
static uint32_t n_heads, n_picked, n_heads_early, n_picked_early;

static void latent_count_fetches(const char *kernel, uint64_t number, void *args) {
    const struct expert_args *a = args;

    if (strcmp(kernel, "expert_vec") != 0)
        return;
    bool heads = a->n_used == ROUTE_PICKS;

    n_heads += heads;
    n_picked += !heads;
    n_heads_early += heads && a->settled;
    n_picked_early += !heads && a->settled;
}

/* Weights of picked experts are not: route() picks right before their product. */
Test(cuda_latent, weights_of_heads_are_fetched_before_the_wait) {
    const struct way way = {.chunk = 5, .n_neighbours = 1, .graphs = true, .fuse = "1"};
    struct trace t = {0};
    char path[64];

    synth(SMALL ",n_lead=0", "Q8_0", path);
    fake_find()->on_launch = latent_count_fetches;
    ways_run(path, "cuda", &way, &t);
    fake_find()->on_launch = NULL;
    cr_expect(n_heads > 0 && n_heads_early == n_heads, "%u of %u", n_heads_early, n_heads);
    cr_expect(n_picked > 0 && n_picked_early == 0, "%u of %u", n_picked_early, n_picked);
    free(t.logits);
    unlink(path);
}

/* -- prefixes, long contexts ------------------------------------------------------------------- */

enum { LONG = 290, SHARED = 272, MORE = 4 };

struct digests {
    const struct driver_seq *subject;
    uint64_t at[LONG + MORE];
};

static void keep_digest(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                        const float *logits) {
    struct digests *d = ctx;

    if (s == d->subject)
        d->at[pos] = out->digest;
}

/* Runs a prompt of two chunks of keys: by @chunk rows, or after a prefix on the pages of another
 * sequence that decodes at the same time. The self-test must report exactly @note. */
static void run_long(const char *path, enum engine_kv_type kv, uint32_t chunk, bool hit,
                     const char *graphs, const char *note, struct digests *out) {
    struct driver_opts o = {.backend = "cuda",
                            .path = path,
                            .n_pages = 64,
                            .page_tokens = 16,
                            .kv_type = kv_both(kv),
                            .on_out = keep_digest,
                            .ctx = out,
                            .max_rows = 300,
                            .max_wants = 8,
                            .max_seqs = 4,
                            .shuffle = 1 + chunk};
    int32_t tokens[LONG];
    struct driver_seq *all[2];
    struct err err = {0};
    struct rng rng = {6};
    struct driver d;
    uint32_t n = 0;

    setenv("WEFT_CUDA_GRAPHS", graphs, 1);
    int r = driver_open(&d, &o, &err);
    cr_assert(r == 0, "%s", err.message);
    cr_expect(note ? strstr(d.info->note, note) != NULL : !d.info->note[0], "%s", d.info->note);
    for (uint32_t i = 0; i < LONG; i++)
        tokens[i] = (int32_t)rng_below(&rng, d.info->n_vocab);
    if (hit) {
        all[n++] = driver_add(&d, tokens, LONG - 3, MORE, NULL);
        driver_prefill(&d, all[0], 0);
    }
    out->subject = all[n++] = driver_add(&d, tokens, LONG, MORE, NULL);
    struct driver_seq *s = all[n - 1];
    if (hit) {
        memcpy(s->page, all[0]->page, SHARED / o.page_tokens * sizeof(*s->page));
        s->n_computed = s->launched = SHARED;
    }
    driver_prefill(&d, s, chunk);
    driver_decode(&d, all, n, MORE - 1, false);
    while (n > 0)
        driver_drop(&d, all[--n]);
    driver_close(&d);
}

static uint32_t n_bulk, n_plain;

/* on_launch: counts attention by either kernel. */
static void count_attention(const char *kernel, uint64_t number, void *args) {
    n_bulk += strncmp(kernel, "attend_latent_bulk", 18) == 0;
    n_plain += strcmp(kernel, "attend_latent") == 0 || strncmp(kernel, "attend_latent_q", 15) == 0;
}

/* The choice of the kernel must not change the bits: a device without bulk copies, or one on which
 * attend_latent_bulk fails the self-test, uses attend_latent. */
Test(cuda_latent, chunks_pages_of_others_and_the_kernel_change_no_bit) {
    char path[64];

    synth(SMALL, "Q8_0", path);
    setenv("WEFT_CUDA_FUSE", "16384", 1);
    for (enum engine_kv_type kv = ENGINE_KV_F16; kv <= ENGINE_KV_Q4_0; kv += FEWEST(1, 2)) {
        struct digests first = {0}, chunks = {0}, other = {0}, small = {0};

        fake_find()->on_launch = count_attention;
        n_bulk = n_plain = 0;
        run_long(path, kv, 0, false, "0", NULL, &first);
        run_long(path, kv, 97, false, "1", NULL, &chunks);
        run_long(path, kv, 5, true, "1", NULL, &other);
        cr_expect(n_bulk > 0 && n_plain == 0);
        n_bulk = 0;
        if (kv == ENGINE_KV_F16) {
            setenv("WEFT_CUDA_CHECK", "1", 1);
            fake_find()->broken = "attend_latent_bulk";
            run_long(path, kv, 97, false, "0",
                     "without attend_latent_bulk: other bits in attention", &small);
            fake_find()->broken = NULL;
            setenv("WEFT_CUDA_CHECK", "0", 1);
        } else {
            fake_find()->major = 8;
            run_long(path, kv, 97, false, "0", NULL, &small);
            fake_find()->major = 9;
            cr_expect(n_bulk == 0);
        }
        cr_expect(n_plain > 0);
        for (uint32_t i = LONG - 1; i + 1 < LONG + MORE; i++) {
            cr_expect(first.at[i] && first.at[i] == chunks.at[i], "chunks: position %u", i);
            cr_expect(first.at[i] == other.at[i], "prefix: position %u", i);
            cr_expect(first.at[i] == small.at[i], "attend_latent: position %u", i);
        }
    }
    unlink(path);
}
