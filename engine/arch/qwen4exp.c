/*
 * qwen4exp - the ops of Qwen3.8-Flash-Next. A layer consists of two branches between MIX, which
 * forms the branch's input from the residual streams, and HC_OUT, which adds its output to them.
 * The first branch is a gated delta net or attention:
 *
 *   MIX  STATE_IN DELTA PROJ                 HC_OUT
 *   MIX  INDEX QKV ATTEND GATE PROJ          HC_OUT
 *   MIX  ROUTE EXPERTS [SHARED]              HC_OUT
 *
 * NGRAM, which adds the rows of the table for the last tokens to the streams, precedes one layer.
 */

#include "engine/arch/qwen4exp.h"

#include <assert.h>
#include <stdio.h>

#include "engine/arch/hybrid.h"
#include "engine/arch/streams.h"

/* Reads the first @n integers of an array, which must be below 2^53; with @n = 0 all integers of an
 * optional array that has at most @most. Returns their number, 0 after an error or without the
 * key. */
static uint32_t read_array(struct binder *b, const char *key, uint32_t n, uint32_t most,
                           uint64_t *out) {
    struct meta_key full = meta_key(b, key);
    const struct gguf_array *a = gguf_array(b->file, full.s);

    if (b->r < 0 || (!a && !n))
        return 0;
    uint64_t found = 0;

    if (a && gguf_array_type(a) != GGUF_STRING)
        found = gguf_array_n(a);
    if (found == 0 || (n ? found < n : found > most)) {
        bind_refuse(b, "'%s' has %llu numbers, %u are needed", full.s, (unsigned long long)found,
                    n ? n : most);
        return 0;
    }
    if (n)
        found = n;
    uint64_t n_read = gguf_array_read(a, GGUF_U64, 0, found, out);

    for (uint64_t i = 0; i < found && b->r == 0; i++)
        if (i == n_read || out[i] >= 1ull << 53)
            bind_refuse(b, "'%s' has %g, which is out of range", full.s, gguf_array_num(a, i));
    if (b->r < 0)
        return 0;
    return (uint32_t)found;
}

/* Reads the hyperparameters of the indexer, which must be the same for all layers with
 * attention. */
static void read_sparse(struct binder *b, const bool *is_delta, struct model_shape *s) {
    struct sparse_shape *p = &s->sparse;
    uint64_t ratio[MODEL_LAYERS_MAX];
    uint32_t budget = 0, n_rot = s->head_dim;

    meta_u32_opt(b, "rope.dimension_count", 2, s->head_dim, &n_rot);
    meta_u32(b, "attention.indexer.head_count", 1, 256, &p->n_head);
    meta_u32(b, "attention.indexer.key_length", 16, 1024, &p->dim);
    meta_u32(b, "attention.indexer.top_k", 1, 1u << 26, &budget);
    if (!read_array(b, "attention.compress_ratios", s->n_layer, 0, ratio))
        return;
    for (uint32_t l = 0; l < s->n_layer && b->r == 0; l++) {
        if (is_delta[l])
            continue;
        if (!p->ratio)
            p->ratio = (uint32_t)MIN(ratio[l], 32u);
        if (ratio[l] != p->ratio || !p->ratio || p->ratio > 16 || p->ratio & (p->ratio - 1))
            bind_refuse(b,
                        "blocks of %llu positions in layer %u are not supported; all layers "
                        "need the same power of two up to 16",
                        (unsigned long long)ratio[l], l);
    }
    if (b->r == 0 && (p->dim % 16 || p->dim < n_rot || budget < p->ratio))
        bind_refuse(b,
                    "an indexer with keys of %u values for %u tokens is not supported; a "
                    "multiple of 16 values, of which %u turn, and at least %u tokens are needed",
                    p->dim, budget, n_rot, p->ratio);
    if (b->r == 0)
        p->n_block = budget / p->ratio;
    else
        p->n_block = 0;
}

/* Reads the hyperparameters of the table of n-grams. Returns the layer before which it is applied,
 * or n_layer if the model has no such table. */
static uint32_t read_ngram(struct binder *b, struct model_shape *s) {
    struct ngram_shape *g = &s->ngram;
    uint64_t layer = 0;
    uint32_t eos = 0;

    if (!read_array(b, "ple.layers", 0, 1, &layer))
        return s->n_layer;
    meta_u32(b, "ple.ngram_size", 2, NGRAM_TOKENS, &g->n);
    meta_u32(b, "ple.heads_per_ngram", 1, NGRAM_HEADS / NGRAM_TOKENS, &g->n_head);
    meta_u32(b, "ple.conv_kernel", 2, 8, &g->kernel);
    meta_u32(b, "ple.eos_token_id", 0, s->n_vocab - 1, &eos);
    meta_u32(b, "embedding_length_per_layer_input", 1, 1u << 16, &g->width);
    if (b->r < 0)
        return s->n_layer;
    g->eos = (int32_t)eos;
    uint32_t n_row = (g->n - 1) * g->n_head;
    read_array(b, "ple.layer_multipliers", g->n, 0, g->factor);
    read_array(b, "ple.head_offsets", n_row, 0, g->first);
    read_array(b, "ple.head_vocab_sizes", n_row, 0, g->size);
    for (uint32_t i = 0; i < n_row && b->r == 0; i++)
        if (g->size[i] == 0)
            bind_refuse(b, "'%s.ple.head_vocab_sizes' has 0 as number %u; each must be at least 1",
                        b->arch, i);
    if (b->r == 0 && (layer >= s->n_layer || (uint64_t)n_row * g->width != s->n_embd))
        bind_refuse(b,
                    "a table before layer %llu with %u rows of %u values for a token is not "
                    "supported; one of the %u layers and %u values in all are needed",
                    (unsigned long long)layer, n_row, g->width, s->n_layer, s->n_embd);
    return (uint32_t)layer;
}

/* Binds the norm @fmt (with @l and @what) of all streams: their weights, concatenated. */
static const struct tensor *stream_norm(struct binder *b, const struct model *m, const char *fmt,
                                        uint32_t l, const char *what) {
    char name[64];

    snprintf(name, sizeof(name), fmt, l, what);
    return bind_vector(b, BIND_MUST, (uint64_t)m->shape.stream.n * m->shape.n_embd, "%s", name);
}

/* Adds the MIX before branch @what, "attn" or "ffn", of layer @l. With @l = n_layer adds the last
 * MIX, before the logits, which has no weights for HC_OUT. */
static void add_mix(struct binder *b, struct model *m, uint32_t l, const char *what) {
    uint64_t n = m->shape.stream.n, width = n * m->shape.n_embd, low = m->shape.stream.n_low;
    bool ends = l == m->shape.n_layer;
    char name[32];

    snprintf(name, sizeof(name), ends ? "output_hc" : "blk.%u.hc_%s", l, what);
    model_add(
        m, &(struct model_op){
               .kind = OP_MIX,
               .layer = l,
               .q_norm = bind_vector(b, BIND_MUST, width, "%s_norm.weight", name),
               .w = {bind_matrix(b, BIND_MUST, low, width, "%s_up.weight", name),
                     bind_matrix(b, BIND_MUST, width, low, "%s_down.weight", name),
                     bind_matrix(b, bind_if(!ends, BIND_MUST), width, n, "%s_inject.weight", name)},
           });
}

/* Adds the NGRAM op before layer @l. The table stays in the file, so it does not count as weights
 * in memory. */
static void add_ngram(struct binder *b, struct model *m, uint32_t l) {
    struct model_shape *s = &m->shape;
    const struct ngram_shape *g = &s->ngram;
    uint64_t width = (uint64_t)s->stream.n * s->n_embd, n_row = 0;
    const char *name = "per_layer_token_embd.weight";
    const struct tensor *found = gguf_find(b->file, name);

    for (uint32_t i = 0; i < (g->n - 1) * g->n_head; i++)
        n_row = MAX(n_row, g->first[i] + g->size[i]);
    n_row = MAX(n_row, found ? found->ne[1] : 0);
    const struct tensor *table = bind_matrix(b, BIND_MUST, g->width, n_row, "%s", name);
    if (table)
        b->weight_bytes -= table->n_bytes;
    model_add(m, &(struct model_op){
                     .kind = OP_NGRAM,
                     .layer = l,
                     .more = s->state.n_more,
                     .ngram.table = table,
                     .w = {layer_matrix(b, l, "ple_key", s->n_embd, width),
                           layer_matrix(b, l, "ple_value", s->n_embd, s->n_embd)},
                     .k_norm = stream_norm(b, m, "blk.%u.ple_norm_%s.weight", l, "key"),
                     .q_norm = stream_norm(b, m, "blk.%u.ple_norm_%s.weight", l, "query"),
                     .post_norm = stream_norm(b, m, "blk.%u.ple_norm_%s.weight", l, "conv"),
                     .ngram.conv = layer_matrix(b, l, "ple_conv1d", g->kernel, width),
                 });
    s->state.n_more += NGRAM_STATE + (uint64_t)(g->kernel - 1) * g->n * width;
}

/* Adds the indexer of layer @l. */
static void add_index(struct binder *b, struct model *m, uint32_t l) {
    struct sparse_shape *p = &m->shape.sparse;
    uint64_t n = m->shape.n_embd;

    model_add(m, &(struct model_op){
                     .kind = OP_INDEX,
                     .layer = l,
                     .index = p->n_layer++,
                     .more = m->shape.state.n_more,
                     .w = {layer_matrix(b, l, "indexer.q_proj", n, (uint64_t)p->n_head * p->dim),
                           layer_matrix(b, l, "indexer.k_proj", n, p->dim)},
                     .q_norm = layer_vector(b, l, "indexer.q_norm", p->dim),
                     .k_norm = layer_vector(b, l, "indexer.k_norm", p->dim),
                 });
    m->shape.state.n_more += (uint64_t)p->ratio * p->dim;
}

void qwen4exp_bind(struct binder *b, struct model *m, const struct decoder *of) {
    struct decoder own = *of, *d = &own;
    struct model_shape *s = &m->shape;
    bool is_delta[MODEL_LAYERS_MAX] = {0};
    struct model_op logits;

    assert(m->n_ops == 0 && d->streams);
    own.unnormed = true; /* MIX norms the input of branches */
    hybrid_read_delta(b, d->tiled, s);
    hybrid_read_kinds(b, s, is_delta);
    meta_u32(b, "hyper_connection.count", 2, 16, &s->stream.n);
    meta_u32(b, "hyper_connection.low_rank", 1, 1u << 16, &s->stream.n_low);
    read_sparse(b, is_delta, s);
    uint32_t table = read_ngram(b, s);
    if (b->r == 0 && (uint64_t)s->stream.n * s->n_embd % 16)
        bind_refuse(b, "%u streams of %u values are not supported", s->stream.n, s->n_embd);
    if (b->r == 0 && s->n_picture)
        bind_refuse(b, "pictures are not supported for %s models", b->arch);
    decoder_ends(b, m, d, &logits);
    streams_add_out(m, 0, true);
    for (uint32_t i = 0; i < s->n_layer && b->r == 0; i++) {
        struct layer l = decoder_layer(m, i);

        if (i == table)
            add_ngram(b, m, i);
        add_mix(b, m, i, "attn");
        l.attn.sparse = true;
        if (is_delta[i]) {
            hybrid_delta(b, m, d, i);
        } else {
            add_index(b, m, i);
            decoder_attention(b, m, d, &l);
        }
        streams_add_out(m, i, false);
        add_mix(b, m, i, "ffn");
        decoder_experts(b, m, d, i);
        streams_add_out(m, i, false);
    }
    add_mix(b, m, s->n_layer, "");
    model_add(m, &logits);
}
