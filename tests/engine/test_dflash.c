/*
 * Tests block drafters in a file of their own: logits and drafts against those of another
 * implementation, and conditions that must not change them. The model's own results have the same
 * bits with and without a drafter.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/mathx.h"
#include "engine/backend.h"
#include "tests/engine/draft_run.h"
#include "tests/engine/golden.h"
#include "tests/support/gguf_writer.h"

enum { N_PAGES = 128 };
/* More sequences than rows of logits in one round of a device, which divides a block of six
 * rows. */
enum { N_MANY = 23, N_SHORT = 12 };

static const struct pair {
    const char *drafter, *model;
} pairs[] = {
    {"qwen35-dflash", "qwen35-mtp"},
    {"qwen35-dflash2", "qwen35-mtp"},
    {"qwen3-dspark", "qwen3"},
};

static void open_pair(struct driver *d, const struct pair *p, const char *backend,
                      enum engine_kv_type kv_type, bool drafts, struct draft_watch *w) {
    struct driver_opts o = {
        .path = draft_path(p->model, ".gguf"),
        .block = drafts ? draft_path(p->drafter, ".gguf") : NULL,
        .backend = backend,
        .kv_type = kv_both(kv_type),
        .n_threads = 2,
        .n_pages = N_PAGES,
        .max_rows = N_MANY * DRAFT_ROWS,
        .max_seqs = N_MANY,
        .drafts = drafts,
        .on_out = draft_see,
        .ctx = w,
    };
    struct err err = {0};

    cr_assert_eq(driver_open(d, &o, &err), 0, "%s: %s", p->drafter, err.message);
    cr_assert_eq(d->info->n_vocab, N_VOCAB);
    cr_assert_eq(d->info->n_slots > 0, drafts, "%s: %s", p->drafter, d->info->note);
    cr_assert(d->info->n_block <= DRAFT_ROWS && !!d->info->n_block == drafts);
}

/* -- golden values ----------------------------------------------------------------------------- */

static yyjson_val *must(yyjson_val *v) {
    cr_assert(v != NULL, "a file of golden values lacks a part");
    return v;
}

static uint32_t number(yyjson_val *v, const char *key) {
    return (uint32_t)yyjson_get_uint(must(yyjson_obj_get(v, key)));
}

/* x - right| / |right|. */
static double apart(const float *x, yyjson_val *right) {
    double worst = 0, sum = 0, norm = 0;
    size_t k, n;
    yyjson_val *v;

    cr_assert_eq(yyjson_arr_size(right), N_VOCAB);
    yyjson_arr_foreach(right, k, n, v) {
        double diff = fabs((double)x[k] - yyjson_get_num(v));

        worst = diff <= worst ? worst : diff; /* NaN too */
        sum += diff * diff;
        norm += yyjson_get_num(v) * yyjson_get_num(v);
    }
    return BACKEND_IS_DEVICE ? sqrt(sum / norm) : worst;
}

/* Returns true if a token is not a candidate for the draft at place @i. */
static bool is_none(const struct draft_watch *w, size_t i, int64_t token) {
    return w->logits[i + 1][token] < -5e3F;
}

/* Returns true if a token is among the candidates of a place of the golden file. */
static bool has_id(yyjson_val *place, int32_t token) {
    size_t k, n;
    yyjson_val *id;

    yyjson_arr_foreach(yyjson_obj_get(place, "ids"), k, n, id) {
        if (yyjson_get_int(id) == token)
            return true;
    }
    return false;
}

/* Returns the largest difference from the candidates' scores after the preceding drafts, which the
 * selector leaves as logits. For a device: relative, over the candidates that it shares, up to a
 * draft that is not a candidate. */
static double selected_apart(const struct draft_watch *w, const struct driver_seq *s,
                             yyjson_val *lattice) {
    double worst = 0, sum = 0, norm = 0;
    size_t i, k, n, n_ids, before = 0;
    yyjson_val *place, *id;

    yyjson_arr_foreach(lattice, i, n, place) {
        yyjson_val *ids = yyjson_obj_get(place, "ids"), *scores = yyjson_obj_get(place, "scores");
        yyjson_val *row = must(yyjson_arr_get(scores, before));
        yyjson_arr_foreach(ids, k, n_ids, id) {
            double right = yyjson_get_num(yyjson_arr_get(row, k));
            double diff = fabs((double)w->logits[i + 1][yyjson_get_int(id)] - right);

            if (!(BACKEND_IS_DEVICE && is_none(w, i, yyjson_get_int(id)))) {
                worst = diff <= worst ? worst : diff; /* NaN too */
                sum += diff * diff;
                norm += right * right;
            }
            before = yyjson_get_int(id) == s->draft[i] ? k : before;
        }
        if (!has_id(place, s->draft[i]))
            break;
    }
    return BACKEND_IS_DEVICE ? sqrt(sum / norm) : worst;
}

/* Returns the scores of the candidates at place @i, after the preceding draft. */
static yyjson_val *scores_behind(yyjson_val *lattice, size_t i, yyjson_val *drafts) {
    yyjson_val *scores = must(yyjson_obj_get(yyjson_arr_get(lattice, i), "scores")), *id;
    size_t k, n, before = 0;

    yyjson_arr_foreach(i ? yyjson_obj_get(yyjson_arr_get(lattice, i - 1), "ids") : NULL, k, n, id) {
        if (yyjson_equals(id, yyjson_arr_get(drafts, i - 1)))
            before = k;
    }
    return must(yyjson_arr_get(scores, before));
}

/* Returns by how much the largest number of a list leads; 0: there is no list. A device, whose
 * logits of size 3 are off by 0.1, may choose another token if the lead is small. */
static double lead_of(yyjson_val *row) {
    double best = -1e9, second = -1e9;
    size_t k, n;
    yyjson_val *v;

    yyjson_arr_foreach(row, k, n, v) {
        double x = yyjson_get_num(v);

        second = x > best ? best : x > second ? x : second;
        best = x > best ? x : best;
    }
    return row ? best - second : 0;
}

/* Runs the block after the prompt and the first greedy tokens, as the round says. */
static double check_round(struct driver *d, struct draft_watch *w, struct driver_seq *s,
                          yyjson_val *round, uint32_t *n_equal) {
    yyjson_val *logits = yyjson_obj_get(round, "logits"), *drafts = yyjson_obj_get(round, "drafts");
    yyjson_val *lattice = yyjson_obj_get(round, "lattice"), *v;
    double worst = 0;
    size_t i, n;

    while (s->n_computed < number(round, "position"))
        driver_decode(d, &s, 1, 1, false);
    cr_assert_eq(s->token[s->n_computed], (int32_t)number(round, "input"));
    w->pos0 = s->n_computed;
    w->n_seen = 0;
    driver_block(d, &s, 1);
    cr_assert_eq(w->n_seen, d->info->n_block);
    yyjson_arr_foreach(lattice ? NULL : logits, i, n, v) {
        double diff = apart(w->logits[i], v);

        cr_assert(i < DRAFT_ROWS);
        worst = diff <= worst ? worst : diff;
    }
    if (lattice)
        worst = selected_apart(w, s, lattice);
    cr_assert_eq(yyjson_arr_size(drafts), d->info->n_block - d->info->first_draft);
    yyjson_arr_foreach(drafts, i, n, v) {
        yyjson_val *row = lattice ? scores_behind(lattice, i, drafts)
                                  : yyjson_arr_get(logits, i + d->info->first_draft);
        int32_t right = (int32_t)yyjson_get_int(v);
        bool close = BACKEND_IS_DEVICE && lead_of(row) < 0.25;

        *n_equal += s->draft[i] == right;
        close |= BACKEND_IS_DEVICE && lattice &&
                 (is_none(w, i, right) || !has_id(yyjson_arr_get(lattice, i), s->draft[i]));
        if (close && lattice && s->draft[i] != right)
            break; /* from here on the scores differ */
        cr_expect(close || s->draft[i] == right, "draft %zu at %u", i, w->pos0);
    }
    w->pos0 = UINT32_MAX;
    return worst;
}

static void check_golden(const struct pair *p, const char *backend, enum engine_kv_type kv_type,
                         double tolerance) {
    CLEANUP(golden_freep) struct golden *g = golden_load(draft_path(p->model, ".json"));
    yyjson_doc *doc = yyjson_read_file(draft_path(p->drafter, ".json"), 0, NULL, NULL);
    yyjson_val *cases = must(yyjson_obj_get(yyjson_doc_get_root(doc), "cases")), *one, *round;
    struct draft_watch w = {.pos0 = UINT32_MAX};
    size_t c, r, n, n_rounds, n_drafts = 0;
    uint32_t n_equal = 0;
    struct driver d;

    open_pair(&d, p, backend, kv_type, true, &w);
    cr_assert_eq(yyjson_arr_size(cases), g->n_cases);
    yyjson_arr_foreach(cases, c, n, one) {
        const struct golden_case *of = &g->cases[c];
        int32_t forced[GOLDEN_STEPS];
        double worst = 0;

        for (uint32_t i = 0; i < of->n_greedy; i++)
            forced[i] = of->greedy[i].id;
        struct driver_seq *s = driver_add(&d, of->prompt, of->n_prompt, GOLDEN_STEPS, NULL);
        s->forced = forced;
        driver_prefill(&d, s, 50);
        yyjson_arr_foreach(yyjson_obj_get(one, "rounds"), r, n_rounds, round) {
            double diff = check_round(&d, &w, s, round, &n_equal);

            worst = diff <= worst ? worst : diff;
        }
        cr_assert(n_rounds > 0);
        n_drafts += n_rounds * (d.info->n_block - d.info->first_draft);
        printf("# %s %s, %u tokens: %.2g, %u of %zu drafts\n", d.info->backend, p->drafter,
               of->n_prompt, worst, n_equal, n_drafts);
        cr_expect(worst <= tolerance, "%s: %g", p->drafter, worst);
        driver_drop(&d, s);
    }
    cr_expect(n_equal >= n_drafts * 7 / 10);
    driver_close(&d);
    yyjson_doc_free(doc);
}

#ifndef BACKEND
Test(dflash, reference_drafts_what_another_implementation_does) {
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
        check_golden(&pairs[i], "reference", ENGINE_KV_F32, 1e-3);
}
#endif

Test(dflash, drafts_stay_close) {
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
        check_golden(&pairs[i], JUDGED, ENGINE_KV_F16, 0.05);
}

/* -- conditions that must not change results --------------------------------------------------- */

static void open_of(const void *of, const char *backend, bool drafts, struct driver *d,
                    struct draft_watch *w) {
    open_pair(d, of, backend, ENGINE_KV_F16, drafts, w);
}

static void check_manners(const char *backend) {
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
        draft_check_manners(&(struct drafting){pairs[i].drafter, &pairs[i], open_of, driver_block},
                            backend);
}

#ifndef BACKEND
Test(dflash, reference_drafts_do_not_depend_on_what_else_runs) {
    check_manners("reference");
}
#endif

Test(dflash, drafts_do_not_depend_on_what_else_runs) {
    check_manners(JUDGED);
}

static void check_many(const struct pair *p) {
    struct draft_watch w = {.pos0 = UINT32_MAX};
    struct driver_seq *seq[N_MANY];
    int32_t prompt[N_PROMPT]; /* its first N_SHORT tokens */
    struct driver d;

    open_pair(&d, p, JUDGED, ENGINE_KV_F16, true, &w);
    draft_prompt(prompt, 1, N_VOCAB);
    for (uint32_t i = 0; i < N_MANY; i++) {
        seq[i] = driver_add(&d, prompt, N_SHORT, DRAFT_ROWS + 1, NULL);
        driver_prefill(&d, seq[i], 0);
    }
    driver_block(&d, seq, N_MANY);
    uint32_t n = d.info->n_block - d.info->first_draft;
    for (uint32_t i = 1; i < N_MANY; i++)
        cr_expect(memcmp(seq[0]->draft, seq[i]->draft, n * sizeof(int32_t)) == 0, "%s, sequence %u",
                  p->drafter, i);
    for (uint32_t i = 0; i < N_MANY; i++)
        driver_drop(&d, seq[i]);
    driver_close(&d);
}

Test(dflash, blocks_of_many_sequences_are_the_same) {
    for (size_t i = 1; i < ARRAY_SIZE(pairs); i++)
        check_many(&pairs[i]);
}

/* -- pairs of tiny models ---------------------------------------------------------------------- */

static const struct tiny_model qwen3 = {.arch = "qwen3", .n_embd = 128, .n_ff = 128};

/* Opens a model with a drafter; returns the result of driver_open(). */
static int open_tiny(struct tiny_model model, struct tiny_model drafter, struct driver *d,
                     struct err *err) {
    drafter.arch = "dflash";
    return draft_open_tiny(&model, &drafter, JUDGED, d, err);
}

/* The second sequence begins with pages that none of its steps has computed, as after a prefix
 * hit. */
Test(dflash, drafts_need_nothing_but_pages) {
    int32_t prompt[N_PROMPT];
    struct driver d;
    struct err err;

    draft_prompt(prompt, 1, 299);
    cr_assert_eq(open_tiny(qwen3, qwen3, &d, &err), 0, "%s", err.message);
    struct driver_seq *a = driver_add(&d, prompt, N_PROMPT, 8, NULL);
    driver_prefill(&d, a, 0);
    driver_block(&d, &a, 1);
    struct driver_seq *b = driver_add(&d, a->token, N_PROMPT + 1, 7, NULL);
    uint32_t *own = b->page;
    b->page = a->page;
    b->n_computed = b->launched = N_PROMPT;
    driver_block(&d, &b, 1);
    cr_expect(memcmp(a->draft, b->draft, 3 * sizeof(*a->draft)) == 0);
    b->page = own; /* in a step in which nothing was computed */
    driver_block(&d, &b, 1);
    cr_expect(memcmp(a->draft, b->draft, 3 * sizeof(*a->draft)) != 0);
    driver_drop(&d, a);
    driver_drop(&d, b);
    driver_close(&d);
}

/* Closes @d. Returns the number of its drafts after a prompt. */
static uint32_t draft_and_close(struct driver *d, int32_t *draft) {
    int32_t prompt[N_PROMPT];

    draft_prompt(prompt, 1, 299);
    struct driver_seq *s = driver_add(d, prompt, N_PROMPT, 8, NULL);
    driver_prefill(d, s, 0);
    driver_block(d, &s, 1);
    uint32_t n = d->info->n_slots ? d->info->n_block - d->info->first_draft : 0;
    memcpy(draft, s->draft, n * sizeof(*draft));
    driver_drop(d, s);
    driver_close(d);
    return n;
}

/* Returns the number of drafts of drafter @t after a prompt. */
static uint32_t draft_tiny(struct tiny_model t, int32_t *draft) {
    struct driver d;
    struct err err;

    cr_assert_eq(open_tiny(qwen3, t, &d, &err), 0, "%s", err.message);
    return draft_and_close(&d, draft);
}

/* with sample_from_anchor a block has one draft more */
Test(dflash, a_markov_head_without_weights_changes_no_draft) {
    struct tiny_model heads = qwen3, anchored = qwen3;
    int32_t plain[4], draft[4];

    heads.markov = 16;
    anchored.markov = 16;
    anchored.anchored = true;
    cr_assert_eq(draft_tiny(qwen3, plain), 3);
    cr_assert_eq(draft_tiny(heads, draft), 3);
    cr_expect(memcmp(plain, draft, 3 * sizeof(*draft)) == 0);
    cr_assert_eq(draft_tiny(anchored, draft), 4);
    cr_expect(memcmp(plain, draft + 1, 3 * sizeof(*draft)) == 0);
}

#ifndef BACKEND
/* Without the key, the scale of heads of 64 values is 1/8. */
Test(dflash, the_file_may_name_the_scale_of_scores) {
    static const float scale[] = {0.125f, 100};
    struct tiny_model t = qwen3;
    int32_t plain[4], draft[4];
    char path[2][64];

    tiny_model_temp(&qwen3, path[0]);
    cr_assert_eq(draft_tiny(qwen3, plain), 3);
    t.arch = "dflash";
    for (size_t i = 0; i < ARRAY_SIZE(scale); i++) {
        struct gguf_writer w;
        struct driver d;
        struct err err = {0};

        gw_init(&w);
        tiny_model_build(&t, &w);
        gw_f32(&w, "dflash.attention.scale", scale[i]);
        tiny_model_temp_of(&w, path[1]);
        gw_deinit(&w);
        const struct driver_opts o = {
            .backend = JUDGED, .path = path[0], .block = path[1], .drafts = true};
        cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
        unlink(path[1]);
        cr_assert_eq(draft_and_close(&d, draft), 3);
        cr_expect((memcmp(plain, draft, 3 * sizeof(*draft)) == 0) == (i == 0));
    }
    unlink(path[0]);
}

/* Writes a copy of the drafter with convolutions to @path, with base taps that are rounded to half
 * precision, in the format @type. */
static void write_taps(enum tensor_type type, char path[64]) {
    static const char from[] = "qwen35-dflash2";
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};

    cr_assert_eq(gguf_open(&g, draft_path(from, ".gguf"), &err), 0, "%s", err.message);
    size_t n = gguf_bytes(g);
    CLEANUP(freep) uint8_t *bytes = malloc(n);
    cr_assert(pread(gguf_shard_fd(g, 0), bytes, n, 0) == (ssize_t)n);
    size_t start = gguf_tensor(g, 0)->file_offset, at = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *x = gguf_tensor(g, i);
        bool taps = strstr(x->name, "_conv_base") != NULL, halves = taps && type == TENSOR_F16;
        uint64_t length = strlen(x->name), offset = at;
        const uint32_t to = type;
        char entry[128];

        memcpy(entry, &length, 8);
        memcpy(entry + 8, x->name, length);
        uint8_t *after = memmem(bytes, start, entry, 8 + length), *data = bytes + start + at;
        cr_assert(after && (!taps || x->format->type == TENSOR_F32));
        after += 8 + length + 4 + 8ul * x->n_dims; /* its type */
        memcpy(after + 4, &offset, 8);
        memmove(data, bytes + x->file_offset, x->n_bytes);
        if (taps)
            memcpy(after, &to, 4);
        for (size_t k = 0; k < x->n_bytes / 4 && taps; k++) {
            float v;

            memcpy(&v, data + 4 * k, 4);
            uint16_t half = mx_float_to_half(v);
            v = mx_half_to_float(half);
            memcpy(data + (halves ? 2 : 4) * k, halves ? (void *)&half : (void *)&v,
                   halves ? 2 : 4);
        }
        at += round_up(halves ? x->n_bytes / 2 : x->n_bytes, 32);
    }
    n = start + at;
    strcpy(path, "/tmp/weft-taps-XXXXXX");
    close(mkstemp(path));
    gw_save_bytes(path, bytes, n);
}

/* The format of base taps does not matter if the values are equal. */
Test(dflash, base_taps_may_have_half_precision) {
    static const char *const backends[] = {"reference", "cpu"};

    for (size_t b = 0; b < ARRAY_SIZE(backends); b++) {
        struct draft_watch w[2] = {{.pos0 = N_PROMPT}, {.pos0 = N_PROMPT}};
        int32_t draft[2][DRAFT_ROWS];

        for (int half = 0; half < 2; half++) {
            struct driver d;
            struct err err = {0};
            char path[64];

            write_taps(half ? TENSOR_F16 : TENSOR_F32, path);
            const struct driver_opts o = {
                .backend = backends[b],
                .path = draft_path("qwen35-mtp", ".gguf"),
                .block = path,
                .n_pages = N_PAGES,
                .max_rows = N_MANY * DRAFT_ROWS,
                .max_seqs = 1,
                .drafts = true,
                .on_out = draft_see,
                .ctx = &w[half],
            };
            cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
            unlink(path);
            cr_expect(draft_and_close(&d, draft[half]) > 0);
        }
        cr_expect(w[0].n_seen > 0 && memcmp(&w[0], &w[1], sizeof(w[0])) == 0, "%s", backends[b]);
    }
}
#else
/* Opens a model with a drafter; @o names the devices. */
static void open_on(struct driver_opts o, struct driver *d) {
    struct tiny_model drafter = qwen3;
    char path[2][64];
    struct err err = {0};

    drafter.arch = "dflash";
    tiny_model_temp(&qwen3, path[0]);
    tiny_model_temp(&drafter, path[1]);
    o.backend = BACKEND;
    o.path = path[0];
    o.block = path[1];
    o.drafts = true;
    cr_assert_eq(driver_open(d, &o, &err), 0, "%s", err.message);
    unlink(path[0]);
    unlink(path[1]);
}

/* A drafter's layers differ from the model's layers of the same number. */
Test(dflash, host_computes_ffns_of_the_model_alone) {
    int32_t prompt[N_PROMPT], draft[2][3];
    struct driver d;

    draft_prompt(prompt, 1, 299);
    for (uint32_t all = 0; all < 2; all++) {
        open_on((struct driver_opts){.device_layers = all ? 0 : 1}, &d);
        cr_assert_eq(d.info->n_host_ffn, all ? 0 : 1, "%s", d.info->note);
        struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, 8, NULL);
        driver_prefill(&d, s, 0);
        driver_block(&d, &s, 1);
        memcpy(draft[all], s->draft, sizeof(draft[all]));
        driver_drop(&d, s);
        driver_close(&d);
    }
    cr_expect(memcmp(draft[0], draft[1], sizeof(draft[0])) == 0);
}

Test(dflash, several_devices_draft_nothing_and_say_so) {
    struct driver d;

    setenv("WEFT_CUDA_FAKE_DEVICES", "2", 1);
    open_on((struct driver_opts){.devices = "0,1"}, &d);
    cr_expect_eq(d.info->n_slots, 0);
    cr_expect(strstr(d.info->note, "the draft model's file is not used for drafts: this backend "
                                   "does not compute it") != NULL,
              "%s", d.info->note);
    driver_close(&d);
}
#endif

Test(dflash, a_drafter_of_another_model_is_refused) {
    struct tiny_model wide = qwen3, words = qwen3, deep = qwen3, llama = qwen3, no_fc = qwen3,
                      no_taps = qwen3, no_mask = qwen3, no_block = qwen3, no_values = qwen3;
    wide.n_embd = 256;
    wide.n_head_kv = 4;
    words.n_vocab = 320;
    deep.n_layer = 1;
    llama.arch = "llama";
    no_fc.leave_out = "fc.weight";
    no_taps.leave_out = "dflash.target_layers";
    no_mask.leave_out = "tokenizer.ggml.mask_token_id";
    no_block.leave_out = "dflash.block_size";
    no_values.leave_out = "blk.1.attn_v.weight";
    const struct {
        struct tiny_model model, drafter;
        const char *why;
    } cases[] = {
        {qwen3, wide, "'dflash.embedding_length' is 256, but the model's is 128"},
        {qwen3, words, "'dflash.vocab_size' is 320, but the model's is 300"},
        {deep, qwen3, "the drafter reads the input of layer 2, and the model has 1 layers"},
        {llama, qwen3, "a block drafter for llama, which has rotary positions of neighbours"},
        {qwen3, no_fc, "has no tensor 'fc.weight'"},
        {qwen3, no_taps, "'dflash.target_layers' has 0 layers"},
        {qwen3, no_mask, "names no token of the model as 'tokenizer.ggml.mask_token_id'"},
        {qwen3, no_block, "has no 'dflash.block_size'"},
        {qwen3, no_values, "has no tensor 'blk.1.attn_v.weight'"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct driver d;
        struct err err;

        cr_expect_eq(open_tiny(cases[i].model, cases[i].drafter, &d, &err), -EINVAL);
        cr_expect(strstr(err.message, cases[i].why) != NULL, "%zu: %s", i, err.message);
    }
}

/* a tensor that only such a drafter has */
Test(dflash, other_kinds_are_refused) {
    static const struct {
        const char *tensor, *why;
    } cases[] = {
        {"markov_w1.weight", "has no tensor 'markov_w2.weight'"},
        {"d2t", "a block drafter with a vocabulary of its own (tensor 'd2t')"},
        {"selector_hidden.weight", "has no 'dflash.conv_kernel_size'"},
    };
    struct tiny_model t = qwen3;
    char path[2][64];

    tiny_model_temp(&qwen3, path[0]);
    t.arch = "dflash";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct gguf_writer w;
        struct driver d;
        struct err err = {0};

        gw_init(&w);
        tiny_model_build(&t, &w);
        gw_tensor(&w, cases[i].tensor, TENSOR_F32, 2, (uint64_t[]){128, 4}, NULL);
        tiny_model_temp_of(&w, path[1]);
        gw_deinit(&w);
        const struct driver_opts o = {.path = path[0], .block = path[1], .drafts = true};
        cr_expect_eq(driver_open(&d, &o, &err), -EINVAL);
        unlink(path[1]);
        cr_expect(strstr(err.message, cases[i].why) != NULL, "%zu: %s", i, err.message);
    }
    unlink(path[0]);
}

Test(dflash, a_drafter_alone_is_no_model) {
    struct tiny_model t = qwen3;
    struct driver d;
    struct err err = {0};
    char path[64];

    t.arch = "dflash";
    tiny_model_temp(&t, path);
    cr_expect_eq(driver_open(&d, &(struct driver_opts){.path = path}, &err), -EINVAL);
    unlink(path);
    cr_expect(strstr(err.message, "it is a block drafter") != NULL, "%s", err.message);
}
