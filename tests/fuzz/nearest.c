/* Headers of model files, read as every known architecture: a row accepts the file or says on one
 * line why not, and the nearest rows come in order. */

#include "engine/nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/gguf_writer.h"

/* Checks that @n is what the header promises of names: at most SURVEY_NAMES, each once. */
static void check_names(const struct survey_names *n) {
    FUZZ_ASSERT(n->n <= SURVEY_NAMES);
    for (uint32_t i = 0; i < n->n; i++) {
        FUZZ_ASSERT(strnlen(n->name[i], SURVEY_CHARS) < SURVEY_CHARS);
        for (uint32_t k = 0; k < i; k++)
            FUZZ_ASSERT(strcmp(n->name[i], n->name[k]) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static struct nearest found[NEAREST];
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};

    if (gguf_open(&g, fuzz_file(data, len), &err) < 0)
        return -1;
    int n = engine_nearest(g, found, NEAREST);
    FUZZ_ASSERT(n >= 0 && n <= NEAREST);
    for (int i = 0; i < n; i++) {
        const struct nearest *f = &found[i];

        FUZZ_ASSERT(f->name && *f->name);
        FUZZ_ASSERT(f->accepts || (*f->why && !strchr(f->why, '\n')));
        FUZZ_ASSERT(i == 0 || found[i - 1].accepts || !f->accepts);
        check_names(&f->missing);
        check_names(&f->unknown);
        check_names(&f->keys);
    }
    return 0;
}

/* Adds the keys and tensors of a layer with the shapes of a small Llama. */
static void add_layer(struct gguf_writer *w, uint64_t n_embd) {
    static const char *const square[] = {"blk.0.attn_q.weight",   "blk.0.attn_k.weight",
                                         "blk.0.attn_v.weight",   "blk.0.attn_output.weight",
                                         "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",
                                         "blk.0.ffn_down.weight"};
    static const char *const rows[] = {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight",
                                       "output_norm.weight"};
    const uint64_t shape[] = {n_embd, n_embd};

    for (size_t i = 0; i < ARRAY_SIZE(square); i++)
        gw_tensor(w, square[i], TENSOR_F32, 2, shape, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        gw_tensor(w, rows[i], TENSOR_F32, 1, shape, NULL);
    gw_tensor(w, "token_embd.weight", TENSOR_F32, 2, shape, NULL);
}

bool fuzz_seed(size_t i, struct buf *out) {
    static const char *const archs[] = {"llama", "qwen3", "unheard", "x"};
    static const char *const extra[] = {NULL, "blk.0.attn_q_norm.weight", "blk.0.ssm_a",
                                        "blk.0.ffn_gate_exps.weight"};
    static const char *const keys[][2] = {
        {"block_count", "1"},          {"context_length", "64"},
        {"embedding_length", "32"},    {"feed_forward_length", "32"},
        {"attention.head_count", "2"}, {"attention.head_count_kv", "2"},
        {"vocab_size", "32"},
    };
    const uint64_t n_embd = 32;
    struct gguf_writer w;
    char key[80];

    if (i >= ARRAY_SIZE(archs))
        return false;
    gw_init(&w);
    gw_string(&w, "general.architecture", archs[i]);
    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        snprintf(key, sizeof(key), "%s.%s", archs[i], keys[k][0]);
        gw_u32(&w, key, (uint32_t)atoi(keys[k][1]));
    }
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", archs[i]);
    gw_f32(&w, key, 1e-5f);
    add_layer(&w, n_embd);
    if (extra[i])
        gw_tensor(&w, extra[i], TENSOR_F32, 1, &n_embd, NULL);
    gw_finish(&w);
    FUZZ_ASSERT(buf_add(out, w.file.data, w.file.len) == 0);
    gw_deinit(&w);
    return true;
}
