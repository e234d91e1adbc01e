#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "cmd/cli.h"
#include "engine/backend.h"
#include "tests/support/engine_driver.h"
#include "tests/support/synth/synth.h"

enum { N_PROMPT = 24, N_ROWS = 8, N_VOCAB = 512 };

struct seen {
    uint32_t n;
    int32_t top[N_ROWS + 1];
    double worst_spread,
        /* smallest and largest standard deviation of the logits of a row */
        best_spread;
};

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct seen *seen = ctx;
    double mean = 0, square = 0;

    cr_assert(logits != NULL);
    for (int i = 0; i < N_VOCAB; i++) {
        cr_assert(isfinite(logits[i]));
        mean += (double)logits[i] / N_VOCAB;
    }
    for (int i = 0; i < N_VOCAB; i++)
        square += ((double)logits[i] - mean) * ((double)logits[i] - mean) / N_VOCAB;
    seen->worst_spread = fmin(seen->worst_spread, sqrt(square));
    seen->best_spread = fmax(seen->best_spread, sqrt(square));
    seen->top[seen->n++ % N_ROWS] = out->token;
}

/* The last rows of a prompt of random tokens. */
static void check_model(const char *arch, const char *shape, const char *format) {
    char path[64];
    char *const argv[] = {"synth",      "--shape", (char *)shape, "--n-vocab",    "512",
                          "--seed",     "3",       "--format",    (char *)format, "-o",
                          (char *)path, "--arch",  (char *)arch};
    struct seen seen = {.worst_spread = INFINITY};
    struct driver_opts opts = {.path = path, .on_out = look, .ctx = &seen};
    int32_t prompt[N_PROMPT];
    struct rng rng = {11};
    struct driver d;
    struct err err = {0};
    uint32_t n_distinct = 0;

    snprintf(path, sizeof(path), "/tmp/weft-synth-%d.gguf", getpid());

    cr_assert(synth_main((int)ARRAY_SIZE(argv), (char **)argv) == CLI_OK);
    cr_assert(driver_open(&d, &opts, &err) == 0, "%s %s: %s", arch, format, err.message);
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = (int32_t)rng_below(&rng, N_VOCAB);
    struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, 1, NULL);
    struct driver_part part = {s, N_PROMPT - N_ROWS};
    driver_step(&d, &part, 1);
    s->every_row = true;
    part.n_rows = N_ROWS;
    driver_step(&d, &part, 1);
    cr_assert(seen.n == N_ROWS, "%u rows", seen.n);
    for (int i = 0; i < N_ROWS; i++) {
        bool again = false;

        for (int j = 0; j < i; j++)
            again |= seen.top[i] == seen.top[j];
        n_distinct += !again;
    }
    /* About 3: clear winners, few near ties; and the winner depends on what came before. */
    cr_expect(seen.worst_spread > 1.5 && seen.best_spread < 6, "%s %s: logits spread %g to %g",
              arch, format, seen.worst_spread, seen.best_spread);
    cr_expect(n_distinct >= 4, "%s %s: %u different tokens of %d", arch, format, n_distinct,
              N_ROWS);
    driver_drop(&d, s);
    driver_close(&d);
    unlink(path);
}

static void check_formats(const char *arch) {
    static const char *const formats[] = {
        "F32",    "F16",     "BF16",    "Q4_0",   "Q4_1",  "Q5_0",  "Q5_1",
        "Q8_0",   "Q2_K",    "Q3_K",    "Q4_K",   "Q5_K",  "Q6_K",  "IQ4_NL",
        "IQ4_XS", "IQ2_XXS", "Q4_K_M",  "Q5_K_M", "MXFP4", "IQ1_S", "IQ1_M",
        "IQ2_XS", "IQ2_S",   "IQ3_XXS", "IQ3_S",  "TQ1_0", "TQ2_0", "NVFP4",
    };

    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        check_model(arch, "tiny", formats[i]);
}

Test(gguf_synth, llama_models_of_every_format_give_sane_logits) {
    check_formats("llama");
}

Test(gguf_synth, qwen2_models_of_every_format_give_sane_logits) {
    check_formats("qwen2");
}

Test(gguf_synth, qwen3_models_of_every_format_give_sane_logits) {
    check_formats("qwen3");
}

/* Small models with all that is particular to these shapes, and formats for narrow rows. */
Test(gguf_synth, models_with_windows_latent_attention_and_experts_give_sane_logits) {
    static const struct {
        const char *arch, *shape;
    } models[] = {
        {"mistral3", "devstral-24b,n_layer=2,n_embd=256,n_head=4,n_kv=2,head_dim=64,n_ff=512"},
        {"gpt-oss", "gpt-oss-20b,n_layer=2,n_embd=256,n_head=8,n_kv=2,head_dim=32,n_ff=96,"
                    "n_expert=8,n_used=2,window=8"},
        {"gemma4", "gemma-4-26b-a4b,n_layer=4,period=2,n_embd=256,n_head=4,n_kv=2,head_dim=64,"
                   "n_kv_window=4,window_dim=32,n_ff=96,n_dense=128,n_expert=8,n_used=2,window=8"},
        {"deepseek2", "glm-4.7-flash,n_layer=3,n_embd=256,n_head=4,head_dim=64,n_rot=16,q_rank=64,"
                      "kv_rank=64,v_dim=32,n_ff=64,n_shared=64,n_dense=128,n_expert=8"},
        {"deepseek4",
         "deepseek-v4-flash,n_layer=5,n_embd=256,n_head=4,head_dim=64,n_rot=16,q_rank=64,n_group=2,"
         "out_rank=32,n_ff=64,n_shared=64,n_expert=8,n_used=2,n_index=2,index_dim=32,n_chosen=4,"
         "window=8"},
        {"bailingmoe3", "ling-3.0-flash,n_layer=4,period=2,n_embd=256,n_head=4,head_dim=64,"
                        "n_rot=16,kv_rank=64,v_dim=32,n_ff=64,n_shared=64,n_dense=128,n_lead=1,"
                        "n_expert=8,n_used=2,n_group=4"},
        {"deepseek4",
         "deepseek-v4-flash,n_layer=5,n_embd=256,n_head=4,head_dim=64,n_rot=16,q_rank=64,n_group=2,"
         "out_rank=32,n_ff=64,n_shared=64,n_expert=8,n_used=2,n_index=2,index_dim=32,n_chosen=4,"
         "window=8,n_mtp=1"},
        {"minimax-m2", "minimax-m2.7,n_layer=2,n_embd=256,n_head=4,n_kv=2,head_dim=64,n_ff=64,"
                       "n_expert=8,n_used=2,n_rot=32"},
        {"qwen35moe", "qwen3.6-35b-a3b,n_layer=4,n_embd=256,n_head=4,n_kv=2,head_dim=64,n_ff=64,"
                      "n_shared=64,n_expert=8,n_used=2,n_rot=16,n_key=2,n_value=4,n_state=32"},
        {"qwen35", "qwen3.6-27b,n_layer=4,n_embd=256,n_head=4,n_kv=2,head_dim=64,n_ff=512,"
                   "n_rot=16,n_key=2,n_value=4,n_state=32,n_mtp=1"},
        {"qwen4exp", "qwen3.8-flash-next,n_layer=4,n_embd=256,n_head=4,n_kv=2,head_dim=64,n_ff=64,"
                     "n_shared=64,n_expert=8,n_used=2,n_rot=16,n_key=2,n_value=4,n_state=32,"
                     "n_low=32,index_dim=32,n_chosen=8,n_table=100"},
    };
    static const char *const formats[] = {"F32", "Q4_K_M", "MXFP4_MOE"};

    for (size_t i = 0; i < ARRAY_SIZE(models); i++)
        for (size_t j = 0; j < ARRAY_SIZE(formats); j++)
            check_model(models[i].arch, models[i].shape, formats[j]);
}

static void write_model(const char *shape, const char *format, char path[64]) {
    char *const argv[] = {"synth", "--shape",  (char *)shape,  "--n-vocab", "512", "--seed",
                          "3",     "--format", (char *)format, "-o",        path};

    snprintf(path, 64, "/tmp/weft-synth-%d-%c.gguf", getpid(),
             strstr(shape, "assistant") ? 'a' : 'm');
    cr_assert(synth_main((int)ARRAY_SIZE(argv), (char **)argv) == CLI_OK);
}

/* As wide as the model and with layers that add next to nothing it says what the model does. */
Test(gguf_synth, an_assistant_drafts_what_its_model_says) {
    static const char *const formats[] = {"F32", "Q4_K_M"};
    enum { N_DRAFTS = 3 };
#define COMMON                                                                                     \
    "n_embd=256,n_head=4,n_kv=2,head_dim=64,n_kv_window=4,window_dim=32,window=8,period=2,loud=0." \
    "01"

    for (size_t f = 0; f < ARRAY_SIZE(formats); f++) {
        int32_t prompt[N_PROMPT];
        struct rng rng = {11};
        struct driver d;
        struct err err = {0};
        char path[2][64];

        write_model("gemma-4-26b-a4b,n_layer=4,n_ff=96,n_dense=128,n_expert=8,n_used=2," COMMON,
                    formats[f], path[0]);
        write_model("gemma-4-26b-a4b-assistant,n_layer=2,n_ff=96,n_embd_out=256," COMMON,
                    formats[f], path[1]);
        const struct driver_opts opts = {.path = path[0], .block = path[1], .drafts = true};
        cr_assert(driver_open(&d, &opts, &err) == 0, "%s: %s", formats[f], err.message);
        unlink(path[0]);
        unlink(path[1]);
        for (int i = 0; i < N_PROMPT; i++)
            prompt[i] = (int32_t)rng_below(&rng, N_VOCAB);
        struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, 2 * N_DRAFTS, NULL);
        driver_prefill(&d, s, 0);
        for (uint32_t k = 0; k < N_DRAFTS; k++)
            driver_draft(&d, &s, 1, k);
        driver_decode(&d, &s, 1, N_DRAFTS, false);
        for (uint32_t k = 0; k < N_DRAFTS; k++)
            cr_expect(s->draft[k] == s->out[1 + k].token, "%s: draft %u", formats[f], k);
        driver_drop(&d, s);
        driver_close(&d);
    }
#undef COMMON
}
