/*
 * Tests the reader of deepseek4's drafting block: if a file lacks a part of it, the model is served
 * without the block and a note says why; memory of drafts is reported; and a block in a file of its
 * own drafts the same as in the model's file.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "engine/backend.h"
#include "tests/support/engine_driver.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test_data.h"

static char *read_golden(size_t *n) {
    char path[TEST_DATA_PATH];
    FILE *f = fopen(test_data_file(path, "golden", "deepseek4-mtp", ".gguf"), "rb");

    cr_assert(f && fseek(f, 0, SEEK_END) == 0);
    *n = (size_t)ftell(f);
    char *bytes = malloc(*n);
    rewind(f);
    cr_assert(bytes && fread(bytes, 1, *n, f) == *n);
    fclose(f);
    return bytes;
}

/* Opens a file with those bytes, with drafts. Returns the note, "" if the block drafts. */
static const char *note_of(const char *bytes, size_t n) {
    static char note[600];
    char path[] = "/tmp/weft-compressed-block-XXXXXX";
    int fd = mkstemp(path);
    struct driver_opts o = {
        .path = path, .max_rows = 8, .max_seqs = 2, .n_pages = 4, .drafts = true};
    struct err err = {0};
    struct driver d;

    cr_assert(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    snprintf(note, sizeof(note), "%s", d.info->note);
    cr_expect_eq(d.info->n_slots > 0, d.info->note[0] == '\0');
    driver_close(&d);
    unlink(path);
    return note;
}

/* Returns the note of the file with byte @at after @name, or its last byte, set to @value. */
static const char *note_with(const char *name, size_t at, char value) {
    size_t n, length = strlen(name);
    char *bytes = read_golden(&n), *found = memmem(bytes, n, name, length);

    cr_assert(found, "the file has no '%s'", name);
    found[at ? length + at : length - 1] = value;
    const char *note = note_of(bytes, n);
    free(bytes);
    return note;
}

Test(compressed_block, what_is_missing_is_named) {
    static const char *const names[] = {
        "blk.4.nextn.hnorm.weight",         "blk.4.nextn.hc_head_base.weight",
        "blk.4.nextn.hc_head_scale.weight", "blk.4.attn_norm.weight",
        "blk.4.attn_sinks.weight",          "blk.4.attn_kv.weight",
        "blk.4.hc_ffn_base.weight",         "blk.4.exp_probs_b.bias",
        "blk.4.ffn_gate_exps.weight",       "blk.4.ffn_down_shexp.weight"};
    char why[100];

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const char *note = note_with(names[i], 0, '?');

        snprintf(why, sizeof(why), "no tensor '%s'", names[i]);
        cr_expect(strstr(note, why), "%s: '%s'", names[i], note);
    }
}

/* the five numbers of the array follow its type, their type and their count */
Test(compressed_block, a_block_with_compressed_keys_is_refused) {
    const char *note = note_with("deepseek4.attention.compress_ratios", 16 + 4 * 4, 4);

    cr_expect(strstr(note, "'deepseek4.attention.compress_ratios' is 4 for layer 4; only 0 is"),
              "'%s'", note);
    cr_expect_str_empty(note_with("deepseek4.attention.compress_ratios", 16 + 4 * 4, 0));
}

static struct engine_fit fit(const struct gguf *file, bool drafts) {
    const struct engine_opts o = {.file = file,
                                  .backend = "cpu",
                                  .page_tokens = 32,
                                  .max_rows = 64,
                                  .max_seqs = 2,
                                  .max_wants = 4,
                                  .memory = 400 << 20,
                                  .drafts = drafts};
    struct engine_fit f;
    struct err err = {0};

    cr_assert_eq(engine_fit(&f, &o, &err), 0, "%s", err.message);
    return f;
}

/* Hidden states are four streams of 40 values, for each row and for 34 positions of each slot. The
 * block's input is 80 values more. Its window has room for drafts: 8 + 32 keys of 32 values. */
Test(compressed_block, memory_of_drafts_is_told) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    char path[TEST_DATA_PATH];
    struct err err = {0};

    test_data_file(path, "golden", "deepseek4-mtp", ".gguf");
    cr_assert(gguf_open(&file, path, &err) == 0, "%s", err.message);
    const struct engine_fit without = fit(file, false), with = fit(file, true);
    uint64_t hidden = (with.n_states * ENGINE_KEPT + 64) * 4 * 40 * sizeof(float);
    uint64_t pair = 64 * 2 * 40 * sizeof(float), more = with.buffer_bytes - without.buffer_bytes;

    cr_expect_eq(with.state_bytes - without.state_bytes, (8 + 32) * 32 * sizeof(float));
    cr_expect_eq(with.page_bytes, without.page_bytes);
    cr_expect(more >= hidden + pair && more < hidden + pair + 64 * 80 * sizeof(float),
              "%llu, at least %llu", (unsigned long long)more, (unsigned long long)(hidden + pair));
    cr_expect_gt(with.weight_bytes, without.weight_bytes);
}

/* Writes only the block of @from, with the keys that its reader needs. */
static void write_block(const struct gguf *from, const char *path) {
    static const int32_t blocks[] = {0, 4, 128, 4, 0};
    struct gguf_writer w;

    gw_init(&w);
    gw_string(&w, "general.architecture", "deepseek4");
    gw_u32(&w, "deepseek4.block_count", 5);
    gw_u32(&w, "deepseek4.nextn_predict_layers", 1);
    gw_u32(&w, "deepseek4.hash_layer_count", 1);
    gw_u32(&w, "deepseek4.attention.output_lora_rank", 12);
    gw_f32(&w, "deepseek4.swiglu_clamp_exp", 3);
    gw_f32(&w, "deepseek4.swiglu_clamp_shexp", 3);
    gw_array(&w, "deepseek4.attention.compress_ratios", GGUF_I32, 5, blocks, sizeof(blocks));
    for (uint64_t i = 0; i < gguf_n_tensors(from); i++) {
        const struct tensor *t = gguf_tensor(from, i);

        if (strncmp(t->name, "blk.4.", 6) == 0)
            gw_tensor(&w, t->name, t->format->type, t->n_dims, t->ne, t->data);
    }
    gw_save(&w, path);
    gw_deinit(&w);
}

struct draft {
    uint32_t n;
    float logits[384];
};

static void see(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                const float *logits) {
    struct draft *d = ctx;

    (void)s, (void)out, (void)pos;
    memcpy(d->logits, logits, sizeof(d->logits));
    d->n++;
}

/* Drafts one token after a prompt. */
static void draft(const char *path, const char *block, struct draft *out) {
    static const int32_t prompt[] = {25, 85, 218, 99, 35, 214, 184, 3, 7, 11, 90};
    struct driver_opts o = {.path = path,
                            .block = block,
                            .max_rows = 16,
                            .max_seqs = 2,
                            .n_pages = 4,
                            .drafts = true,
                            .on_out = see,
                            .ctx = out};
    struct err err = {0};
    struct driver d;

    *out = (struct draft){0};
    cr_assert_eq(driver_open(&d, &o, &err), 0, "%s", err.message);
    struct driver_seq *s = driver_add(&d, prompt, ARRAY_SIZE(prompt), 8, NULL);
    driver_prefill(&d, s, 0);
    driver_draft(&d, &s, 1, 0);
    cr_expect_eq(out->n, 2);
    driver_drop(&d, s);
    driver_close(&d);
}

Test(compressed_block, a_block_in_a_file_of_its_own_drafts_the_same) {
    static struct draft together, apart;
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    char with[TEST_DATA_PATH], without[TEST_DATA_PATH], path[] = "/tmp/weft-block-XXXXXX";
    struct err err = {0};

    test_data_file(with, "golden", "deepseek4-mtp", ".gguf");
    test_data_file(without, "golden", "deepseek4", ".gguf");
    cr_assert(gguf_open(&file, with, &err) == 0, "%s", err.message);
    close(mkstemp(path));
    write_block(file, path);
    draft(with, NULL, &together);
    draft(without, path, &apart);
    cr_expect(memcmp(&together, &apart, sizeof(apart)) == 0);
    unlink(path);
}
