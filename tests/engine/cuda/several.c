#include "tests/engine/cuda/several.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/rng.h"

#ifdef __SANITIZE_ADDRESS__
void __lsan_disable(void);
void __lsan_enable(void);
#else
#define __lsan_disable()
#define __lsan_enable()
#endif

const struct tiny_model several_dense = {
    .type = TENSOR_Q8_0, .n_layer = 2, .n_embd = 64, .n_ff = 64, .n_vocab = 40, .head_dim = 32};
uint32_t several_device_layers;

enum { STATE_BYTES = 1 << 18 }; /* most bytes of a state */

static void keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct trace *t = ctx;

    for (uint32_t i = 0; i < SEQS; i++)
        if (t->seq[i] == s)
            t->at[i][pos] = (struct driver_out){out->token, out->logprob, out->digest};
}

void several_run(const char *path, const char *devices, enum engine_kv_type kv, uint32_t n_seqs,
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
                            .device_layers = several_device_layers,
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

void several_run_long(const char *path, const char *devices, struct trace *t) {
    struct driver_opts o = {.backend = "cuda",
                            .devices = (char *)devices,
                            .path = path,
                            .n_pages = 24,
                            .max_rows = LONG,
                            .max_seqs = SEQS,
                            .on_out = keep,
                            .ctx = t};
    struct rng rng = {7};
    int32_t prompt[LONG];
    struct err err = {0};
    struct driver d;

    memset(t, 0, sizeof(*t));
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    for (uint32_t i = 0; i < LONG; i++)
        prompt[i] = (int32_t)rng_below(&rng, d.info->n_vocab);
    struct driver_seq *a = t->seq[0] = driver_add(&d, prompt + 5, SHORT, OUTPUTS + 1, NULL);
    struct driver_seq *b = t->seq[1] = driver_add(&d, prompt, LONG, OUTPUTS, NULL);
    b->every_row = true;
    driver_launch(&d, &(struct driver_part){a, SHORT}, 1);
    driver_launch(&d, (struct driver_part[]){{a, 1}, {b, LONG - 1}}, 2);
    driver_wait(&d);
    driver_launch(&d, (struct driver_part[]){{a, 1}, {b, 1}}, 2);
    driver_wait(&d);
    driver_wait(&d);
    driver_decode(&d, t->seq, SEQS, OUTPUTS - 2, true);
    for (uint32_t i = 0; i < SEQS; i++)
        driver_drop(&d, t->seq[i]);
    driver_close(&d);
    cr_expect(fake_find()->n_live == 0);
}

uint32_t several_difference(const struct trace *a, const struct trace *b) {
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t p = 0; p < LONG + OUTPUTS; p++)
            if (a->at[i][p].digest != b->at[i][p].digest ||
                a->at[i][p].token != b->at[i][p].token ||
                a->at[i][p].logprob != b->at[i][p].logprob)
                return i * (LONG + OUTPUTS) + p;
    return UINT32_MAX;
}

void several_expect_equal(const struct trace *one, const struct trace *other,
                          const struct driver_out *last, const char *what) {
    uint32_t at = several_difference(one, other);

    cr_expect(last->digest != 0 && at == UINT32_MAX, "%s, %u", what, at);
}

void several_compare(const struct tiny_model *m, const char *devices, enum engine_kv_type kv) {
    static struct trace one, several;
    struct fake_cuda *f = fake_find();
    char path[64];

    tiny_model_temp(m, path);
    several_run(path, "0", kv, SEQS, &one);
    f->ahead = -1;
    f->n_graph_launches = 0;
    several_run(path, devices, kv, SEQS, &several);
    several_expect_equal(&one, &several, &one.at[0][PROMPT], m->arch);
    cr_expect(f->n_graph_launches > 0, "%s", m->arch);
    f->ahead = 0;
    unlink(path);
}

bool several_misses(const char *path, bool is_long, uint32_t number, const struct trace *right) {
    static struct trace wrong;
    struct fake_cuda *f = fake_find();
    bool seen = false;

    f->forget_wait = number;
    for (uint32_t way = 0; way < 10 && !seen; way++) {
        f->ahead = 1 + (int)(way % 2);
        f->now_and_then = way > 1;
        f->n_drained = way / 2;
        f->n_waits = 0;
        if (is_long)
            several_run_long(path, "0,1", &wrong);
        else
            several_run(path, "0,1", ENGINE_KV_F16, 1, &wrong);
        seen = several_difference(right, &wrong) != UINT32_MAX;
    }
    f->forget_wait = 0;
    f->ahead = 0;
    f->now_and_then = false;
    return seen;
}

int several_try(const char *path, const char *devices, const char *backend, struct outcome *out,
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
                                  .device_layers = several_device_layers,
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

        r = fake_run_step(e, &b, &result);
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

void several_try_both(const char *path, bool pages, struct outcome *one, struct outcome *two) {
    struct err err = {0};

    cr_assert(several_try(path, "1", "cuda", one, &err) == 0, "%s", err.message);
    cr_assert(several_try(path, "0,1", "cuda", two, &err) == 0, "%s", err.message);
    cr_expect(one->digest[0] == two->digest[0] && one->digest[1] == two->digest[1], "%s", path);
    cr_expect(one->digest[0] && one->digest[1] && one->digest[0] != one->digest[1]);
    cr_expect(one->vector[63] != 0 && memcmp(one->vector, two->vector, sizeof(one->vector)) == 0);
    cr_expect(one->page_bytes == two->page_bytes &&
              (!pages || memcmp(one->page, two->page, one->page_bytes) == 0));
}

/* Runs a prompt of SHORT tokens. The state after the first few is saved to host memory and loaded
 * again after other rows; @state gets the snapshot. */
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

void several_move_states(void) {
    static const char *const archs[] = {"qwen35", "qwen3next"};
    static uint8_t of_one[STATE_BYTES], of_two[STATE_BYTES];
    static struct trace one, two;

    for (size_t i = 0; i < FEW(ARRAY_SIZE(archs)); i++) {
        const struct tiny_model m = {
            .arch = archs[i], .type = TENSOR_Q8_0, .n_embd = 64, .n_ff = 64, .n_vocab = 41};
        char path[64];

        tiny_model_temp(&m, path);
        run_back(path, "1", &one, of_one);
        run_back(path, "0,1", &two, of_two);
        several_expect_equal(&one, &two, &one.at[0][SHORT - 1], archs[i]);
        cr_expect(memcmp(of_one, of_two, STATE_BYTES) == 0, "%s", archs[i]);
        unlink(path);
    }
}

void several_fail_calls(const char *path, uint32_t stride, uint32_t n_waits, uint32_t least) {
    struct fake_cuda *f = fake_find();
    struct outcome out;
    struct err err = {0};

    f->n_devices = 2;
    f->idle = true;
    f->n_calls = 0;
    cr_assert(several_try(path, "0,1", "cuda", &out, &err) == 0, "%s", err.message);
    uint32_t n = f->n_calls, n_closing = 0, n_captures = 0;
    cr_assert(n > 200 && f->n_live == 0);
    for (uint32_t i = 1; i <= n; i += i + 50 < n ? stride : 1) {
        f->n_calls = 0;
        f->fail_at = i;
        f->sticky = i % 2;
        f->failed_capture = false;
        memset(&err, 0, sizeof(err));
        int r = several_try(path, "0,1", "cuda", &out, &err);
        n_captures += r == 0 && f->failed_capture;
        n_closing += r == 0 && !f->failed_capture;
        cr_expect(r < 0 || f->failed_capture || i + n_waits > n, "call %u of %u", i, n);
        cr_expect(r == 0 || r == -EIO || err.message[0], "call %u: %d without a word", i, r);
        cr_expect(f->n_live == 0, "call %u: %d left", i, f->n_live);
    }
    f->fail_at = 0;
    cr_expect(n_closing == n_waits && n_captures > least, "%u, %u", n_closing, n_captures);
}

void several_hang(const char *path) {
    struct outcome out;

    fake_find()->n_devices = 2;
    setenv("WEFT_CUDA_WAIT_MS", "20", 1);
    __lsan_disable();
    for (int i = 0; i < 2; i++) {
        struct err err = {0};

        fake_find()->hang_device = i;
        fake_find()->hang_after = 1 + (uint32_t)i; /* samplings on both devices */
        cr_expect(several_try(path, "0,1", "cuda", &out, &err) == -EIO, "%s", err.message);
    }
    __lsan_enable();
    cr_expect(fake_find()->n_live > 0, "left to the end of the process");
}

struct engine_fit several_fit(const char *path, const char *devices, struct err *err) {
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
                                  .device_layers = several_device_layers};
    if (engine_fit(&fit, &o, err) < 0)
        fit.n_pages = 0;
    return fit;
}

uint32_t several_pages(const char *path, const char *devices, struct err *err) {
    return several_fit(path, devices, err).n_pages;
}
