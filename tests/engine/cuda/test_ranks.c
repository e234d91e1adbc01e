/*
 * Several devices that share a model (engine/cuda/ranks/ranks.c), emulated: the bits of one device,
 * whichever of them is ahead of the others; what happens where one fails, hangs, or is too small.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/gguf.h"
#include "base/mathx.h"
#include "base/rng.h"
#include "tests/support/synth/synth.h"
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/support/engine_driver.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

#ifdef __SANITIZE_ADDRESS__
void __lsan_disable(void);
void __lsan_enable(void);
#define FEW(all) 1
#else
#define __lsan_disable()
#define __lsan_enable()
#define FEW(all) (all)
#endif

enum { PROMPT = 24, SHORT = 8, OUTPUTS = 4, SEQS = 2 };

/* One narrow layer of two key heads. */
static void two_heads(char path[64]) {
    const struct tiny_model m = {.type = TENSOR_Q8_0,
                                 .n_layer = 1,
                                 .n_embd = 64,
                                 .n_ff = 64,
                                 .n_vocab = 40,
                                 .head_dim = 32,
                                 .max_context = 600};

    tiny_model_temp(&m, path);
}

/* Two layers of latent attention with four heads, experts in the second; queries from a vector of
 * @q_rank values, or of the row itself. */
static void latent(char path[64], uint32_t q_rank) {
    char shape[200];
    const char *argv[] = {"synth", "--shape", shape, "--format", "Q8_0", "-o", path, NULL};

    snprintf(shape, sizeof(shape),
             "glm-4.7-flash,n_layer=2,n_embd=64,n_head=4,head_dim=64,n_rot=32,q_rank=%u,kv_rank=64,"
             "v_dim=32,n_ff=64,n_shared=64,n_dense=64,n_vocab=300,n_expert=4,n_used=2",
             q_rank);
    snprintf(path, 64, "/tmp/weft-ranks-%d.gguf", (int)getpid());
    cr_assert(synth_main(ARRAY_SIZE(argv) - 1, (char **)argv) == 0);
}

/* Two layers, of which the host may have an FFN. */
static const struct tiny_model small_dense = {
    .type = TENSOR_Q8_0, .n_layer = 2, .n_embd = 64, .n_ff = 64, .n_vocab = 40, .head_dim = 32};

/* What came of each row of each sequence. */
struct trace {
    struct driver_seq *seq[SEQS];
    struct driver_out at[SEQS][PROMPT + OUTPUTS];
};

static void keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct trace *t = ctx;

    for (uint32_t i = 0; i < SEQS; i++)
        if (t->seq[i] == s)
            t->at[i][pos] = (struct driver_out){out->token, out->logprob, out->digest};
}

static void keep_many(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                      const float *logits) {
    ((struct driver_out *)ctx)[pos] = (struct driver_out){out->token, out->logprob, out->digest};
}

static uint32_t device_layers; /* engine_opts, of the next runs; 0: all */

/* A prompt in chunks of 17 rows and fewer, with @n_seqs of 2 one at once; then all decode, two
 * steps in flight. One alone has a short one in two chunks that are in flight at once, the first
 * without wants. */
static void run(const char *path, const char *devices, enum engine_kv_type kv, uint32_t n_seqs,
                struct trace *t) {
    const uint32_t n_prompt[SEQS] = {n_seqs > 1 ? PROMPT : SHORT, PROMPT - 3};
    const uint32_t chunk[SEQS] = {n_seqs > 1 ? 17 : SHORT / 2 + 1, 0};
    struct driver_opts o = {.backend = "cuda",
                            .devices = (char *)devices,
                            .path = path,
                            .n_pages = 20,
                            .kv_type = kv_both(kv),
                            .max_rows = 64,
                            .max_seqs = SEQS,
                            .device_layers = device_layers,
                            .on_out = keep,
                            .ctx = t,
                            .shuffle = 3};
    struct err err = {0};
    struct driver d;

    memset(t, 0, sizeof(*t));
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    for (uint32_t i = 0; i < n_seqs; i++) {
        struct rng rng = {i + 1};
        int32_t prompt[PROMPT];

        for (uint32_t k = 0; k < n_prompt[i]; k++)
            prompt[k] = (int32_t)rng_below(&rng, d.info->n_vocab);
        t->seq[i] = driver_add(&d, prompt, n_prompt[i], OUTPUTS, NULL);
        t->seq[i]->every_row = n_seqs > 1;
        if (n_seqs > 1) {
            driver_prefill(&d, t->seq[i], chunk[i]);
            continue;
        }
        driver_launch(&d, &(struct driver_part){t->seq[i], chunk[i]}, 1);
        driver_launch(&d, &(struct driver_part){t->seq[i], n_prompt[i] - chunk[i]}, 1);
        driver_wait(&d);
        driver_wait(&d);
    }
    driver_decode(&d, t->seq, n_seqs, OUTPUTS - 1, true);
    for (uint32_t i = 0; i < n_seqs; i++)
        driver_drop(&d, t->seq[i]);
    driver_close(&d);
    cr_expect(fake_find()->n_live == 0);
}

/* The first position that differs, of all sequences one behind the other; UINT32_MAX: none. */
static uint32_t difference(const struct trace *a, const struct trace *b) {
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t p = 0; p < PROMPT + OUTPUTS; p++)
            if (a->at[i][p].digest != b->at[i][p].digest ||
                a->at[i][p].token != b->at[i][p].token ||
                a->at[i][p].logprob != b->at[i][p].logprob)
                return i * (PROMPT + OUTPUTS) + p;
    return UINT32_MAX;
}

/* Runs @m on one device and on @devices, which run apart as far as events let them and launch
 * graphs: the bits are the same. */
static void expect_bits_of_one(const struct tiny_model *m, const char *devices,
                               enum engine_kv_type kv) {
    static struct trace one, several;
    struct fake_cuda *f = fake_find();
    char path[64];

    tiny_model_temp(m, path);
    run(path, "0", kv, SEQS, &one);
    cr_expect(one.at[0][PROMPT].digest != 0);
    f->ahead = -1;
    f->n_graph_launches = 0;
    run(path, devices, kv, SEQS, &several);
    cr_expect(difference(&one, &several) == UINT32_MAX, "%s, %u", m->arch,
              difference(&one, &several));
    cr_expect(f->n_graph_launches > 0, "%s", m->arch);
    f->ahead = 0;
    unlink(path);
}

/* Widths that do not divide into whole tiles, biases, norms of heads, tied outputs, both types of
 * pages; kernels
 * launched early; experts of few and of many rows, with biases, behind windows and sinks, beside
 * others, in one tensor; norms behind branches; delta nets; now one device ahead of the others, now
 * another. */
Test(cuda_ranks, several_devices_compute_the_bits_of_one) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 1, .n_vocab = 301},
        {.arch = "qwen2", .type = TENSOR_Q8_0, .n_embd = 96, .n_ff = 160, .tied = true},
        {.arch = "llama",
         .type = TENSOR_F32,
         .n_embd = 72,
         .n_ff = 90,
         .n_vocab = 41,
         .n_head = 8,
         .n_head_kv = 4,
         .head_dim = 32,
         .n_layer = 2},
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_layer = 1, .n_vocab = 41},
        {.arch = "glm4moe", .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41},
        {.arch = "gpt-oss",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_expert = 3,
         .n_expert_used = 3},
        {.arch = "gemma4",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2,
         .n_kv_full = 2},
        {.arch = "qwen35moe",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 32,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2},
        {.arch = "qwen3next",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 32,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2},
        {.arch = "gpt-oss",
         .type = TENSOR_MXFP4,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 41,
         .n_expert = 3,
         .n_expert_used = 3},
    };
    struct fake_cuda *f = fake_find();

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        bool four = models[i].n_head_kv == 4;
        const char *devices = four ? "0,3,1,2" : i % 2 ? "1,0" : "0,1";
        enum engine_kv_type kv = i % 4 == 1   ? ENGINE_KV_Q8_0
                                 : i % 4 == 2 ? ENGINE_KV_Q4_0
                                              : ENGINE_KV_F16;

        f->n_devices = four ? 4 : 2;
        setenv("WEFT_CUDA_EARLY", i % 2 ? "0" : "1", 1);
        expect_bits_of_one(&models[i], devices, kv);
    }
}

/* Latent attention: queries from a vector of their own and by a product of their own, which heads
 * divide; behind a dense layer, and before experts with one of all rows. */
Test(cuda_ranks, heads_of_latent_attention_are_divided) {
    static struct trace one, two;
    struct fake_cuda *f = fake_find();

    f->n_devices = 2;
    for (uint32_t i = 0; i < FEW(2); i++) {
        char path[64];

        latent(path, i == 0 ? 64 : 0);
        f->ahead = 0;
        run(path, "0", ENGINE_KV_F16, 1, &one);
        f->ahead = -1;
        run(path, "0,1", ENGINE_KV_F16, 1, &two);
        cr_expect(one.at[0][SHORT].digest != 0 && difference(&one, &two) == UINT32_MAX, "%u: %u", i,
                  difference(&one, &two));
        unlink(path);
    }
    f->ahead = 0;
}

/* -- beside the host --------------------------------------------------------------------------- */

/* Dense FFNs of the host, between layers that the devices have whole; norms behind branches; a
 * norm of the model behind the last one. */
Test(cuda_ranks, ffns_of_the_host_are_those_beside_one_device) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 3, .n_vocab = 41},
        {.arch = "gemma4",
         .type = TENSOR_Q8_0,
         .n_layer = 2,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_kv_full = 2},
        {.arch = "qwen35", .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41},
    };
    static struct trace all, one, two;
    struct fake_cuda *f = fake_find();

    f->n_devices = 2;
    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        run(path, "0", ENGINE_KV_F16, SEQS, &all);
        device_layers = 1;
        run(path, "1", ENGINE_KV_F16, SEQS, &one);
        cr_expect(difference(&all, &one) != UINT32_MAX, "%s", models[i].arch);
        f->ahead = -1;
        f->n_host_calls = f->n_graph_launches = 0;
        run(path, "0,1", ENGINE_KV_F16, SEQS, &two);
        cr_expect(one.at[0][PROMPT].digest != 0 && difference(&one, &two) == UINT32_MAX, "%s, %u",
                  models[i].arch, difference(&one, &two));
        cr_expect(f->n_host_calls > 0 && f->n_graph_launches > 0);
        f->ahead = 0;
        device_layers = 0;
        unlink(path);
    }
}

/* -- what is waited for ------------------------------------------------------------------------ */

/* A wait of a stream for another's event is left out, the @number'th of a run: whether the emulator
 * sees it, where one of the devices is ahead. */
static bool is_missed(const char *path, uint32_t number, const struct trace *right) {
    static struct trace wrong;
    struct fake_cuda *f = fake_find();
    bool seen = false;

    f->forget_wait = number;
    for (uint32_t way = 0; way < 10 && !seen; way++) {
        f->ahead = 1 + (int)(way % 2);
        f->now_and_then = way > 1;
        f->n_drained = way / 2;
        f->n_waits = 0;
        run(path, "0,1", ENGINE_KV_F16, 1, &wrong);
        seen = difference(right, &wrong) != UINT32_MAX;
    }
    f->forget_wait = 0;
    f->ahead = 0;
    f->now_and_then = false;
    return seen;
}

/* Of a step: one where the others get what the first has embedded, two for each exchange of o, x,
 * h, x, one where the first gets the others' logits. The first chunk wants none. */
enum { STEP = 10, FIRST_CHUNK = STEP - 1 };

/* Of a step that is noted, of the graph that is
 * captured of the next one, and of those that it stands for. Without its end, where the first waits
 * for the others, there is no graph. */
Test(cuda_ranks, a_wait_that_is_missing_in_a_graph_is_seen) {
    enum { READS = STEP, CAPTURE = READS + 2, NOTED = FIRST_CHUNK };
    enum { CAPTURED = NOTED + READS + CAPTURE + READS };
    enum { LATER = CAPTURED + CAPTURE, LAST = LATER + 2 * (OUTPUTS - 2) };
    static struct trace right, same;
    struct fake_cuda *f = fake_find();
    char path[64];

    two_heads(path);
    f->n_devices = 2;
    f->n_waits = 0;
    run(path, "0,1", ENGINE_KV_F16, 1, &right);
    cr_expect(f->n_waits == LAST, "%u", f->n_waits);
    cr_expect(f->n_graph_launches == OUTPUTS - 2);
    for (uint32_t i = 1; i <= FEW(READS); i++) {
        cr_expect(is_missed(path, NOTED + i, &right), "wait %u", i);
        cr_expect(is_missed(path, CAPTURED + 1 + i, &right), "graph, wait %u", i);
    }
    for (uint32_t i = LATER + 1; i < FEW(LAST); i++)
        cr_expect(is_missed(path, i, &right), "wait %u", i);
    f->n_waits = 0;
    f->n_graph_launches = 0;
    f->forget_wait = LATER;
    run(path, "0,1", ENGINE_KV_F16, 1, &same);
    cr_expect(f->n_graph_launches == 0 && difference(&right, &same) == UINT32_MAX);
    f->forget_wait = 0;
    unlink(path);
}

/* What a run of a few steps by the engine itself comes to. */
struct outcome {
    uint64_t digest[2];
    float vector[64];      /* of the first step's first row */
    uint8_t page[1 << 14]; /* of host memory */
    size_t page_bytes;
    uint32_t n_pages;
    char isa[32], note[200];
};

/* Opens; three rows, whose page goes to host memory and back to another one, then a row that sees
 * it. Returns the first error. */
static int try_all(const char *path, const char *devices, const char *backend, struct outcome *out,
                   struct err *err) {
    static const uint32_t start[2] = {0, 1};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine_param param = {.top_p = 1, .repetition = 1};
    struct engine *e = NULL;
    static const int32_t tokens[4] = {3, 10, 17, 24};

    cr_assert(gguf_open(&file, path, err) == 0);
    const struct engine_opts o = {.file = file,
                                  .backend = backend,
                                  .devices = (char *)devices,
                                  .n_pages = 4,
                                  .n_host_pages = 2,
                                  .page_tokens = 16,
                                  .max_rows = 16,
                                  .max_seqs = 2,
                                  .max_wants = 16,
                                  .device_layers = device_layers,
                                  .n_threads = 1,
                                  .digest = true};
    int r = engine_new(&e, &o, err);
    for (uint32_t step = 1; step <= 2 && r == 0; step++) {
        const uint32_t page[1] = {step == 1 ? 1 : 3};
        struct engine_seq seq = {.n_rows = step == 1 ? 3 : 1, .pos0 = (step - 1) * 3, .feed = -1};
        const struct engine_want want[2] = {{.row = seq.n_rows - 1, .what = WANT_SAMPLE},
                                            {.row = 0, .what = WANT_HIDDEN}};
        struct engine_copy down = {.src = 1, .dst = 1, .dir = COPY_D2H},
                           up = {.src = 1, .dst = 2, .dir = COPY_H2D}, here = {.src = 2, .dst = 3};
        const struct engine_copy back[2] = {up, here};
        struct engine_batch b = {.step = step,
                                 .n_rows = seq.n_rows,
                                 .n_seqs = 1,
                                 .n_wants = step == 1 ? 2 : 1,
                                 .n_params = 1,
                                 .n_before = step == 1 ? 0 : 2,
                                 .before = back,
                                 .n_after = step == 1,
                                 .after = &down,
                                 .token = tokens + seq.pos0,
                                 .seq = &seq,
                                 .table[KV_GLOBAL] = {start, page},
                                 .want = want,
                                 .param = &param};
        struct engine_result result;

        r = engine_launch(e, &b);
        r = r < 0 ? r : engine_seal(e, step);
        r = r < 0 ? r : engine_wait(e, step, &result);
        if (r == 0)
            out->digest[step - 1] = result.out[0].digest;
        if (r == 0 && step == 1)
            memcpy(out->vector, result.out[1].vector, sizeof(out->vector));
        if (r < 0)
            cr_expect(r == -EIO && engine_launch(e, &b) == -EIO && engine_fault(e)[0]);
    }
    if (r == 0) {
        const struct engine_info *i = engine_info(e);

        out->page_bytes = i->page_bytes;
        cr_assert(i->page_bytes <= sizeof(out->page));
        memcpy(out->page, engine_host_page(e, 1), i->page_bytes);
        snprintf(out->isa, sizeof(out->isa), "%s", i->isa);
        snprintf(out->note, sizeof(out->note), "%s", i->note);
    }
    engine_free(e);
    return r;
}

/* A page of host memory, and so of the disk tier, is the same whatever devices had it; of latent
 * attention each has all of it, and the first one writes it. */
Test(cuda_ranks, pages_go_to_the_host_and_back) {
    fake_find()->n_devices = 2;
    setenv("WEFT_CUDA_CHECK", "1", 1); /* with self-test and proof */
    for (int i = 0; i < FEW(2); i++) {
        struct outcome one = {0}, two = {0};
        struct err err = {0};
        char path[64];

        if (i)
            latent(path, 64);
        else
            two_heads(path);
        cr_assert(try_all(path, "1", "cuda", &one, &err) == 0, "%s", err.message);
        cr_assert(try_all(path, "0,1", "cuda", &two, &err) == 0, "%s", err.message);
        cr_expect(one.digest[0] == two.digest[0] && one.digest[1] == two.digest[1], "%d", i);
        cr_expect(one.digest[0] && one.digest[0] != one.digest[1]);
        cr_expect(one.vector[63] != 0 && memcmp(one.vector, two.vector, sizeof(one.vector)) == 0);
        cr_expect(one.page_bytes == two.page_bytes &&
                  memcmp(one.page, two.page, one.page_bytes) == 0);
        cr_expect(strcmp(one.isa, "sm_90") == 0 && strcmp(two.isa, "sm_90 x2") == 0, "%s", two.isa);
        unlink(path);
    }
}

/* Runs self-test and proof; pages that go to host memory and back are those of one device. */
Test(cuda_ranks, ffns_of_the_host_are_proved) {
    struct outcome one = {0}, two = {0};
    struct err err = {0};
    char path[64];

    tiny_model_temp(&small_dense, path);
    fake_find()->n_devices = 2;
    setenv("WEFT_CUDA_CHECK", "1", 1);
    device_layers = 1;
    cr_assert(try_all(path, "1", "cuda", &one, &err) == 0, "%s", err.message);
    cr_assert(try_all(path, "0,1", "cuda", &two, &err) == 0, "%s", err.message);
    cr_expect(one.digest[0] && one.digest[1]);
    cr_expect(one.digest[0] == two.digest[0] && one.digest[1] == two.digest[1]);
    cr_expect(one.page_bytes == two.page_bytes && memcmp(one.page, two.page, one.page_bytes) == 0);
    cr_expect(strstr(two.note, "the FFNs of the last 1 of 2 layers are in host memory") != NULL,
              "%s", two.note);
    cr_expect(strstr(two.note, "without") == NULL, "%s", two.note);
    device_layers = 0;
    unlink(path);
}

enum { STATE_BYTES = 1 << 18 };

/* A prompt of SHORT tokens, of which the state behind the first few goes to host memory and comes
 * back after others; the snapshot is in @state. */
static void run_back(const char *path, const char *devices, struct trace *t, uint8_t *state) {
    struct driver_opts o = {.backend = "cuda",
                            .devices = (char *)devices,
                            .path = path,
                            .n_pages = 20,
                            .max_rows = 16,
                            .max_seqs = 1,
                            .n_snapshots = 2,
                            .host_kv_bytes = 1 << 20,
                            .on_out = keep,
                            .ctx = t};
    int32_t prompt[SHORT] = {3, 10, 17, 24, 31, 38, 4, 11};
    struct err err = {0};
    struct driver d;

    memset(t, 0, sizeof(*t));
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    struct driver_seq *s = t->seq[0] = driver_add(&d, prompt, SHORT, OUTPUTS, NULL);
    s->every_row = true;
    driver_step(&d, &(struct driver_part){s, 3}, 1);
    driver_save(&d, s, 1);
    driver_step(&d, &(struct driver_part){s, 2}, 1);
    cr_assert(d.info->state_bytes <= STATE_BYTES);
    memcpy(state, engine_host_snapshot(d.engine, 1), d.info->state_bytes);
    driver_load(&d, s, 1, 3);
    driver_prefill(&d, s, 0);
    driver_drop(&d, s);
    driver_close(&d);
}

/* A state in host memory is the same whatever devices had it: of value heads that lie in pieces,
 * and of such that do not. */
Test(cuda_ranks, states_go_to_the_host_and_back) {
    static const char *const archs[] = {"qwen35", "qwen3next"};
    static uint8_t of_one[STATE_BYTES], of_two[STATE_BYTES];
    static struct trace one, two;

    fake_find()->n_devices = 2;
    for (size_t i = 0; i < FEW(ARRAY_SIZE(archs)); i++) {
        const struct tiny_model m = {
            .arch = archs[i], .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41};
        char path[64];

        tiny_model_temp(&m, path);
        run_back(path, "1", &one, of_one);
        run_back(path, "0,1", &two, of_two);
        cr_expect(one.at[0][SHORT - 1].digest != 0 && difference(&one, &two) == UINT32_MAX, "%s",
                  archs[i]);
        cr_expect(memcmp(of_one, of_two, STATE_BYTES) == 0, "%s", archs[i]);
        unlink(path);
    }
}

enum { MANY = 140 };

/* More wants than there are rows of logits at a time: ranks give them round by round. */
Test(cuda_ranks, many_wants_are_sampled_in_rounds) {
    static struct many { struct driver_out at[MANY]; } one, two;
    struct rng rng = {5};
    int32_t prompt[MANY];
    char path[64];

    two_heads(path);
    fake_find()->n_devices = 2;
    for (uint32_t i = 0; i < MANY; i++)
        prompt[i] = (int32_t)rng_below(&rng, 40);
    for (int ahead = 0; ahead <= FEW(2); ahead++) {
        struct driver_opts o = {.backend = "cuda",
                                .devices = ahead ? "0,1" : "0",
                                .path = path,
                                .max_rows = MANY,
                                .on_out = keep_many,
                                .ctx = ahead ? two.at : one.at};
        struct err err = {0};
        struct driver d;

        fake_find()->ahead = ahead;
        cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
        struct driver_seq *s = driver_add(&d, prompt, MANY, 1, NULL);
        s->every_row = true;
        driver_prefill(&d, s, 0);
        driver_drop(&d, s);
        driver_close(&d);
        cr_expect(one.at[MANY - 1].digest != 0);
        cr_expect(ahead == 0 || memcmp(&one, &two, sizeof(one)) == 0, "ahead %d", ahead);
    }
    fake_find()->ahead = 0;
    unlink(path);
}

static int unit[64];
static uint32_t n_units;

static void keep_unit(const char *kernel, uint64_t number, void *args) {
    if (strcmp(kernel, "scale_tiles") == 0 && n_units < ARRAY_SIZE(unit))
        unit[n_units++] = ((struct scale_args *)args)->unit;
}

/* The first rows of a matrix, which are the first rank's, are 64 times as large. */
static void enlarge(const char *path, const char *name) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct err err = {0};

    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct tensor *t = gguf_tensor(file, 0);
    for (uint64_t i = 0; strcmp(t->name, name) != 0; i++)
        t = gguf_tensor(file, i);
    int fd = open(path, O_RDWR);
    for (size_t at = 0; at < t->n_bytes / 2; at += t->format->block_bytes) {
        uint16_t half;

        memcpy(&half, t->data + at, sizeof(half));
        half = mx_float_to_half(64 * mx_half_to_float(half));
        cr_assert(pwrite(fd, &half, sizeof(half), (off_t)(t->file_offset + at)) == sizeof(half));
    }
    close(fd);
}

/* Which scales are too small for half precision is a matter of all of a tensor. */
Test(cuda_ranks, a_matrix_has_one_unit) {
    static struct trace one, two;
    char path[64];

    two_heads(path);
    enlarge(path, "blk.0.ffn_up.weight");
    fake_find()->n_devices = 2;
    run(path, "0", ENGINE_KV_F16, 1, &one);
    fake_find()->on_launch = keep_unit;
    run(path, "0,1", ENGINE_KV_F16, 1, &two);
    fake_find()->on_launch = NULL;
    cr_expect(difference(&one, &two) == UINT32_MAX);
    cr_expect(n_units == 2 * 8, "q, k, v, o, gate, up, down, output: %u", n_units);
    for (uint32_t i = 0; i + 1 < n_units; i += 2)
        cr_expect(unit[i] == unit[i + 1], "matrix %u: %d, %d", i / 2, unit[i], unit[i + 1]);
    unlink(path);
}

/* -- division by layers ------------------------------------------------------------------------ */

/* Devices that do not reach each other's memory. */
static void apart(int n) {
    fake_find()->n_devices = n;
    fake_find()->no_peers = true;
}

/* Models that ranks compute and such that they do not: tied outputs, windows, norms over all heads,
 * delta nets, experts; two devices and three, now one ahead, now another; steps of few rows are a
 * graph on each. */
Test(cuda_layers, several_devices_compute_the_bits_of_one) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3", .type = TENSOR_Q4_K, .n_layer = 3, .n_vocab = 301},
        {.arch = "qwen2",
         .type = TENSOR_Q8_0,
         .n_embd = 96,
         .n_ff = 160,
         .n_layer = 2,
         .tied = true},
        {.arch = "olmo2",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 64,
         .n_vocab = 41,
         .n_layer = 2},
        {.arch = "gpt-oss",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 96,
         .n_vocab = 41,
         .n_layer = 3,
         .n_expert = 3,
         .n_expert_used = 3},
        {.arch = "qwen35moe",
         .type = TENSOR_Q8_0,
         .n_embd = 64,
         .n_ff = 32,
         .n_vocab = 41,
         .n_expert = 5,
         .n_expert_used = 2},
        {.arch = "qwen3next", .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        const char *devices = i == 0 ? "2,0,1" : i % 2 ? "1,0" : "0,1";
        enum engine_kv_type kv = i % 3 == 1 ? ENGINE_KV_Q8_0 : ENGINE_KV_F16;

        apart(3);
        setenv("WEFT_CUDA_EARLY", i % 2 ? "0" : "1", 1);
        expect_bits_of_one(&models[i], devices, kv);
    }
}

/* Mamba-2, short convolutions, latent attention, windows. */
Test(cuda_layers, golden_files_have_the_bits_of_one_device) {
    static const char *const names[] = {"nemotron-h-moe-mtp", "lfm2", "deepseek2-lite", "gemma3"};
    static struct trace one, two;

    apart(2);
    for (size_t i = 0; i < FEW(ARRAY_SIZE(names)); i++) {
        char path[TEST_DATA_PATH];

        test_data_file(path, "golden", names[i], ".gguf");
        run(path, "1", ENGINE_KV_F16, SEQS, &one);
        run(path, "0,1", ENGINE_KV_F16, SEQS, &two);
        cr_expect(one.at[0][PROMPT].digest != 0 && difference(&one, &two) == UINT32_MAX, "%s, %u",
                  names[i], difference(&one, &two));
    }
}

/* Layers that read other layers' keys or inputs; auto takes one device for them. */
Test(cuda_layers, what_crosses_otherwise_is_refused_by_name) {
    static struct outcome out;
    struct err err = {0};
    char path[TEST_DATA_PATH];

    apart(2);
    test_data_file(path, "golden", "gemma4-ple", ".gguf");
    cr_expect(try_all(path, "0,1", "cuda", &out, &err) < 0);
    cr_expect(strstr(err.message, "layers that share keys or inputs") != NULL, "%s", err.message);
}

/* Leaves out a wait where x is handed over, and where a step takes the samples of the last one. */
Test(cuda_layers, a_wait_that_is_missing_is_seen) {
    static struct trace right;
    struct fake_cuda *f = fake_find();
    char path[64];

    tiny_model_temp(&small_dense, path);
    apart(2);
    f->n_waits = 0;
    run(path, "0,1", ENGINE_KV_F16, 1, &right);
    uint32_t n = f->n_waits;
    cr_expect(n > OUTPUTS + 1 && n <= 2 * (OUTPUTS + 1), "%u", n);
    for (uint32_t i = 2; i <= FEW(n); i++)
        cr_expect(is_missed(path, i, &right), "wait %u of %u", i, n);
    unlink(path);
}

/* The second time with self-test and proof, which leave numbers of their own in the page. */
Test(cuda_layers, pages_go_to_the_host_and_back) {
    char path[64];

    tiny_model_temp(&small_dense, path);
    apart(2);
    for (int check = 0; check < 2; check++) {
        struct outcome one = {0}, two = {0};
        struct err err = {0};

        setenv("WEFT_CUDA_CHECK", check ? "1" : "0", 1);
        cr_assert(try_all(path, "1", "cuda", &one, &err) == 0, "%s", err.message);
        cr_assert(try_all(path, "0,1", "cuda", &two, &err) == 0, "%s", err.message);
        cr_expect(one.digest[0] == two.digest[0] && one.digest[1] == two.digest[1]);
        cr_expect(one.digest[0] && one.digest[0] != one.digest[1]);
        cr_expect(one.vector[63] != 0 && memcmp(one.vector, two.vector, sizeof(one.vector)) == 0);
        cr_expect(one.page_bytes == two.page_bytes &&
                  (check || memcmp(one.page, two.page, one.page_bytes) == 0));
        cr_expect(strcmp(two.isa, "sm_90 x2") == 0, "%s", two.isa);
        cr_expect(strcmp(one.note, two.note) == 0, "%s", two.note);
    }
    unlink(path);
}

/* Moves states of layers on both devices, and states where one device has none. */
Test(cuda_layers, states_go_to_the_host_and_back) {
    static uint8_t of_one[STATE_BYTES], of_two[STATE_BYTES];
    static struct trace one, two;

    for (int i = 0; i < FEW(2); i++) {
        const struct tiny_model m = {.arch = i ? "qwen3next" : "qwen35",
                                     .type = TENSOR_Q8_0,
                                     .n_embd = 64,
                                     .n_ff = 64,
                                     .n_vocab = 41};
        char path[64];

        tiny_model_temp(&m, path);
        apart(2);
        run_back(path, "1", &one, of_one);
        run_back(path, "0,1", &two, of_two);
        cr_expect(one.at[0][SHORT - 1].digest != 0 && difference(&one, &two) == UINT32_MAX, "%s",
                  m.arch);
        cr_expect(memcmp(of_one, of_two, STATE_BYTES) == 0, "%s", m.arch);
        unlink(path);
    }
}

/* The kinds, and where they meet, are part of what results depend on. */
Test(cuda_layers, devices_of_two_kinds_have_some_layers_each) {
    struct outcome out = {0};
    struct err err = {0};
    char path[64];

    tiny_model_temp(&small_dense, path);
    fake_find()->n_devices = 2;
    fake_find()->other_kind = true;
    cr_assert(try_all(path, "0,1", "cuda", &out, &err) == 0, "%s", err.message);
    cr_expect(out.digest[0] && out.digest[1]);
    cr_expect(strcmp(out.isa, "sm_90:1+sm_91") == 0, "%s", out.isa);
    unlink(path);
}

/* -- faults ------------------------------------------------------------------------------------ */

/* Each @stride-th call of two devices fails once, and each of the last 50. @n_waits: waits when
 * they are closed, which go unreported; more than @least captures are given up for it. */
static void fail_calls(const char *path, uint32_t stride, uint32_t n_waits, uint32_t least) {
    struct fake_cuda *f = fake_find();
    struct outcome out;
    struct err err = {0};

    f->n_devices = 2;
    f->idle = true;
    f->n_calls = 0;
    cr_assert(try_all(path, "0,1", "cuda", &out, &err) == 0, "%s", err.message);
    uint32_t n = f->n_calls, n_closing = 0, n_captures = 0;
    cr_assert(n > 200 && f->n_live == 0);
    for (uint32_t i = 1; i <= n; i += i + 50 < n ? stride : 1) {
        f->n_calls = 0;
        f->fail_at = i;
        f->sticky = i % 2;
        f->failed_capture = false;
        memset(&err, 0, sizeof(err));
        int r = try_all(path, "0,1", "cuda", &out, &err);
        n_captures += r == 0 && f->failed_capture;
        n_closing += r == 0 && !f->failed_capture;
        cr_expect(r < 0 || f->failed_capture || i + n_waits > n, "call %u of %u", i, n);
        cr_expect(r == 0 || r == -EIO || err.message[0], "call %u: %d without a word", i, r);
        cr_expect(f->n_live == 0, "call %u: %d left", i, f->n_live);
    }
    f->fail_at = 0;
    cr_expect(n_closing == n_waits && n_captures > least, "%u, %u", n_closing, n_captures);
}

/* The model has all kinds of layers whose results ranks exchange: attention, a delta net, experts
 * and an expert of all rows. */
Test(cuda_ranks, every_call_may_fail_once) {
    const struct tiny_model m = {.arch = "qwen35moe",
                                 .type = TENSOR_Q8_0,
                                 .n_embd = 64,
                                 .n_ff = 32,
                                 .n_vocab = 40,
                                 .head_dim = 32,
                                 .n_expert = 3,
                                 .n_expert_used = 2};
    char path[64];

    tiny_model_temp(&m, path);
    fail_calls(path, 1, 6, 50);
    unlink(path);
}

Test(cuda_ranks, every_call_may_fail_once_beside_the_host) {
    char path[64];

    tiny_model_temp(&small_dense, path);
    device_layers = 1;
    fail_calls(path, 1, 7, 30);
    device_layers = 0;
    unlink(path);
}

/* One of them never finishes: the step is given up, and nothing waits for any. */
static void hang_each(const char *path) {
    struct outcome out;

    fake_find()->n_devices = 2;
    setenv("WEFT_CUDA_WAIT_MS", "20", 1);
    __lsan_disable();
    for (int i = 0; i < 2; i++) {
        struct err err = {0};

        fake_find()->hang_device = i;
        fake_find()->hang_after = 1 + (uint32_t)i; /* samplings, of both */
        cr_expect(try_all(path, "0,1", "cuda", &out, &err) == -EIO, "%s", err.message);
    }
    __lsan_enable();
    cr_expect(fake_find()->n_live > 0, "left to the end of the process");
}

Test(cuda_ranks, a_device_that_hangs_is_given_up) {
    char path[64];

    two_heads(path);
    hang_each(path);
    unlink(path);
}

Test(cuda_layers, a_device_that_hangs_is_given_up) {
    char path[64];

    tiny_model_temp(&small_dense, path);
    apart(2);
    hang_each(path);
    unlink(path);
}

/* Each open waits until the free memory of both devices has settled, 200 ms. */
Test(cuda_layers, calls_may_fail_once) {
    char path[64];

    tiny_model_temp(&small_dense, path);
    apart(2);
    fail_calls(path, 23, 6, 2);
    unlink(path);
}

/* -- sizes and refusals ------------------------------------------------------------------------ */

/* Asks what fits; n_pages 0: nothing. */
static struct engine_fit fit_on(const char *path, const char *devices, struct err *err) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine_fit fit = {0};

    cr_assert(gguf_open(&file, path, err) == 0);
    const struct engine_opts o = {.file = file,
                                  .backend = "cuda",
                                  .devices = (char *)devices,
                                  .device_share = 1,
                                  .page_tokens = 16,
                                  .max_rows = 16,
                                  .max_seqs = 2,
                                  .max_wants = 4,
                                  .device_layers = device_layers};
    if (engine_fit(&fit, &o, err) < 0)
        fit.n_pages = 0;
    return fit;
}

static uint32_t n_pages(const char *path, const char *devices, struct err *err) {
    return fit_on(path, devices, err).n_pages;
}

/* But for pages that each has whole. */
Test(cuda_ranks, memory_adds_up) {
    struct fake_cuda *f = fake_find();
    struct err err = {0};
    char path[64];

    two_heads(path);
    f->n_devices = 2;
    f->bytes = (size_t)1 << 30;
    uint32_t one = n_pages(path, "0", &err), two = n_pages(path, "0,1", &err);
    cr_expect(one > 1000 && two > one / 10 * 19, "%u, %u", one, two);
    unlink(path);
    latent(path, 64);
    one = n_pages(path, "0", &err);
    two = n_pages(path, "0,1", &err);
    cr_expect(one > 1000 && two >= one && two < one / 10 * 11, "latent: %u, %u", one, two);
    unlink(path);
}

/* Pages are of as many layers as a device has. */
Test(cuda_layers, memory_adds_up) {
    struct fake_cuda *f = fake_find();
    struct err err = {0};
    char path[64];

    tiny_model_temp(&small_dense, path);
    apart(2);
    f->bytes = (size_t)1 << 30;
    uint32_t one = n_pages(path, "0", &err), two = n_pages(path, "0,1", &err);
    cr_expect(one > 1000 && two > one / 10 * 19, "%u, %u: %s", one, two, err.message);
    device_layers = 1;
    cr_expect(n_pages(path, "0,1", &err) == 0);
    cr_expect(strstr(err.message, "device-layers cannot be combined") != NULL, "%s", err.message);
    device_layers = 0;
    unlink(path);
}

/* Two devices have more layers whole than one; the host has the FFNs of the others. */
Test(cuda_ranks, layers_add_up) {
    const struct tiny_model m = {
        .type = TENSOR_Q8_0, .n_layer = 4, .n_ff = 512, .n_vocab = 64, .max_context = 64};
    const size_t ffn = 3 * 256 * 512 / 32 * 34;
    struct fake_cuda *f = fake_find();
    struct err err = {0};
    struct engine_fit one, two;
    char path[64];

    tiny_model_temp(&m, path);
    f->n_devices = 2;
    device_layers = ENGINE_HOST_AUTO;
    f->bytes = (size_t)1 << 30;
    cr_assert(fit_on(path, "0", &err).n_host_ffn == 0, "%s", err.message);
    /* The least with which two FFNs of one device are the host's. */
    for (size_t step = (size_t)1 << 29; step > ffn / 8; step /= 2) {
        f->bytes -= step;
        one = fit_on(path, "0", &err);
        f->bytes += one.n_pages == 0 || one.n_host_ffn > 2 ? step : 0;
    }
    f->bytes -= ffn / 4;
    one = fit_on(path, "0", &err);
    two = fit_on(path, "0,1", &err);
    cr_expect(one.n_host_ffn == 3 && two.n_host_ffn < 3, "%u, %u: %s", one.n_host_ffn,
              two.n_host_ffn, err.message);
    cr_expect(two.host_ffn_bytes == two.n_host_ffn * ffn);
    device_layers = 0;
    unlink(path);
}

/* What devices are not for: a list that is none, one that is not there, heads that do not divide,
 * two kinds, other models. */
Test(cuda_ranks, what_is_not_computed_is_refused_by_name) {
    static const struct {
        const char *arch, *devices, *why;
    } cases[] = {
        {"llama", "0,", "up to 8 different device numbers"},
        {"llama", "0,0", "up to 8 different device numbers"},
        {"llama", "0,9", "CUDA device 9: there are 3"},
        {"llama", "9,0", "CUDA device 9: there are 3"},
        {"llama", "0,1,2", "3 devices for the 2 layers of the model"},
        {"gemma4", "0,1", "2 devices do not divide the 1 key heads of layer 1"},
        {"olmo2", "0,1", "on several devices, which olmo2 models have"},
    };

    fake_find()->n_devices = 3;
    fake_find()->other_kind = true;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tiny_model m = {.arch = cases[i].arch, .type = TENSOR_Q8_0, .n_layer = 2};
        struct err err = {0};
        struct outcome out;
        char path[64];

        tiny_model_temp(&m, path);
        cr_expect(try_all(path, cases[i].devices, "cuda", &out, &err) < 0, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].why) != NULL, "case %zu: %s", i, err.message);
        cr_expect(fake_find()->n_live == 0);
        unlink(path);
    }
}

Test(cuda_ranks, auto_takes_one_device_where_several_do_not_compute_the_model) {
    struct tiny_model m = {.arch = "olmo2", .type = TENSOR_Q8_0, .n_layer = 2};
    struct outcome out = {0};
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->n_devices = 2;
    cr_assert(try_all(path, "1,0", "auto", &out, &err) == 0, "%s", err.message);
    cr_expect(strcmp(out.isa, "sm_90") == 0, "%s", out.isa);
    cr_expect(strstr(out.note, "one device computes: the cuda backend does not compute") != NULL,
              "%s", out.note);
    unlink(path);
}

/* Each device that is named is asked before any is opened; auto goes on with the first one. */
Test(cuda_ranks, a_device_that_is_of_no_use_is_named) {
    struct outcome out = {0};
    struct err err = {0};
    char path[64];

    two_heads(path);
    fake_find()->n_devices = 3;
    fake_find()->no_code = 2;
    cr_expect(try_all(path, "0,2,1", "cuda", &out, &err) < 0);
    cr_expect(strstr(err.message, "no code for CUDA device 1, fake device") != NULL, "%s",
              err.message);
    cr_expect(fake_find()->n_calls < 12, "%u calls", fake_find()->n_calls);
    cr_assert(try_all(path, "0,1", "auto", &out, &err) == 0, "%s", err.message);
    cr_expect(strcmp(out.isa, "sm_90") == 0, "%s", out.isa);
    cr_expect(strstr(out.note, "no code for CUDA device 1") != NULL, "%s", out.note);
    unlink(path);
}

/* A model's own block is for one device: the model is served without it. */
Test(cuda_ranks, blocks_that_draft_are_left_out) {
    struct tiny_model m = {
        .arch = "glm4moe", .type = TENSOR_Q8_0, .n_layer = 1, .n_blocks = 1, .n_vocab = 40};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->n_devices = 2;
    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct engine_opts o = {.file = file,
                                  .backend = "cuda",
                                  .devices = "0,1",
                                  .drafts = true,
                                  .n_pages = 4,
                                  .page_tokens = 16,
                                  .max_rows = 16,
                                  .max_seqs = 2,
                                  .max_wants = 16};
    cr_assert(engine_new(&e, &o, &err) == 0, "%s", err.message);
    cr_expect(strstr(engine_info(e)->note, "block is not used for drafts: this backend") != NULL,
              "%s", engine_info(e)->note);
    engine_free(e);
    unlink(path);
}

/* The host would compute beside each of them. */
Test(cuda_ranks, experts_of_the_host_are_for_one_device) {
    struct tiny_model m = {.arch = "qwen3moe", .type = TENSOR_Q8_0, .n_layer = 1};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct engine *e = NULL;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&m, path);
    fake_find()->n_devices = 2;
    cr_assert(gguf_open(&file, path, &err) == 0);
    const struct engine_opts o = {.file = file,
                                  .backend = "cuda",
                                  .devices = "0,1",
                                  .host_experts = 1,
                                  .n_pages = 4,
                                  .page_tokens = 16,
                                  .max_rows = 16,
                                  .max_seqs = 2,
                                  .max_wants = 16};
    cr_expect(engine_new(&e, &o, &err) < 0);
    cr_expect(strstr(err.message, "host-experts cannot be combined") != NULL, "%s", err.message);
    engine_free(e);
    unlink(path);
}
