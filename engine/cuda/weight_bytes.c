/*
 * weight_bytes - counts what the weights take before they are loaded (load.c): each tensor of the
 * file as the ops will have it.
 */

#include "engine/cuda/weight_bytes.h"

#include <stdio.h>
#include <string.h>
#include "engine/cuda/cuda.h"
#include "engine/cuda/recurrent/kernels_recurrent.h"

uint32_t cuda_rank_share(const struct be *b, uint32_t n) {
    return (n + b->n_ranks - 1) / b->n_ranks;
}

/* One matrix, or two that are a tensor of experts' gates and ups. */
static uint64_t matrix_bytes(const struct tensor *t) {
    uint32_t n_in = (uint32_t)t->ne[0], n_out = (uint32_t)t->ne[1];
    enum tile_format format = tile_format_of(t->format->type);
    size_t whole = tile_matrix_bytes(format, n_out, n_in),
           halves = 2 * tile_matrix_bytes(format, n_out / 2, n_in);

    return round_up((t->n_dims > 2 ? MAX(whole, halves) : whole) * t->ne[2], 512) +
           (MATMUL_MATRICES - 1) * 512;
}

/* Returns true if the name of @t ends in @end. */
static bool ends_in(const struct tensor *t, const char *end) {
    size_t n = strlen(t->name), k = strlen(end);

    return n >= k && strcmp(t->name + n - k, end) == 0;
}

static bool is_embedding(const struct tensor *t) {
    return strcmp(t->name, "token_embd.weight") == 0;
}

/* Returns true for tensors that every rank has: the router, and the matrices that make latent
 * vectors. */
static bool is_of_each_rank(const struct tensor *t) {
    return ends_in(t, ".ffn_gate_inp.weight") || ends_in(t, ".attn_kv_a_mqa.weight") ||
           ends_in(t, ".attn_q_a.weight");
}

/* Returns the most that own() will take for a tensor, in bytes: it may become several matrices, of
 * which a rank has its rows. @tied: a tied embedding that tiles hold exactly is not there twice;
 * with several ranks the first one has the rows. */
static uint64_t tensor_bytes(const struct be *b, const struct tensor *t, bool tied) {
    bool embed = is_embedding(t);
    bool lent =
        tied && has_last_layer(b) && b->n_ranks == 1 && tile_is_legible((uint32_t)t->format->type);
    struct tensor share = *t;
    uint64_t sum = 0;

    if (!is_of_each_rank(t))
        share.ne[1] = cuda_rank_share(b, (uint32_t)t->ne[1]);
    if (b->n_ranks > 1 && t->n_dims > 2) /* perhaps of gates and of ups */
        share.ne[1] = 2 * cuda_rank_share(b, (uint32_t)(t->ne[1] + 1) / 2);
    if (b->shape->condensed.window && ends_in(t, ".attn_output_a.weight")) { /* by part */
        share.n_dims = 3;
        share.ne[2] = b->shape->condensed.n_group;
        share.ne[1] /= share.ne[2];
    }
    if (embed && !lent && (is_first_device(b) || embeds_drafts(b)))
        sum += round_up(t->n_bytes, 512);
    if (ends_in(t, ".attn_gate.weight")) /* GATE has the layer's norm, too */
        sum += round_up(b->shape->n_embd * sizeof(float), 512);
    if (strcmp(t->name, "per_layer_token_embd.weight") == 0)
        sum += b->shape->ngram.n ? 0 : round_up(t->n_bytes, 512); /* n-grams stay in the file */
    else if (ends_in(t, ".nextn.embed_tokens.weight") ||
             ends_in(t, "selector_predecessor.weight") || ends_in(t, "selector_successor.weight") ||
             ends_in(t, ".ffn_gate_tid2eid.weight"))
        sum += round_up(t->n_bytes, 512);
    else if (t->n_dims < 2 || ends_in(t, ".bias") || ends_in(t, "_conv_base") ||
             ends_in(t, "_ape.weight") || t->ne[0] <= STATE_TAPS) /* decoded, but for biases */
        sum += round_up(MAX(t->n_bytes, t->ne[0] * t->ne[1] * t->ne[2] * sizeof(float)), 512);
    else if (!embed || (tied && has_last_layer(b)))
        sum += matrix_bytes(&share);
    return sum;
}

/* Returns the bytes of a tensor of a layer's experts for those that the device has; it has the
 * factors of all, and of those that it fetches the biases. */
static uint64_t expert_bytes(const struct be *b, const struct tensor *t, uint32_t layer) {
    uint32_t n = b->shape->n_expert, n_here = n - n_host_experts(b->shape, layer);
    struct tensor here = *t;

    if (t->n_dims < 2 || n_here == n || (b->shape->fetches && t->n_dims < 3))
        return tensor_bytes(b, t, false);
    here.ne[t->n_dims - 1] = n_here;
    here.n_bytes = t->n_bytes / n * n_here;
    return n_here ? tensor_bytes(b, &here, false) : b->shape->fetches ? MATMUL_MATRICES * 512 : 0;
}

uint64_t cuda_fetched_bytes(const struct be *b) {
    uint64_t sum = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(b->opts->file); i++) {
        const struct tensor *t = gguf_tensor(b->opts->file, i);
        uint32_t layer;

        if (sscanf(t->name, "blk.%u.", &layer) == 1 && strstr(t->name, "_exps.") && t->n_dims > 2 &&
            fetches_in(b, layer))
            sum += tensor_bytes(b, t, false);
    }
    return sum;
}

/* Returns true for the matrices of a dense FFN. */
static bool is_ffn(const struct tensor *t) {
    return ends_in(t, ".ffn_gate.weight") || ends_in(t, ".ffn_up.weight") ||
           ends_in(t, ".ffn_down.weight");
}

/* Returns the bytes of the tensors of layers [first, end), without the host's part. The embedding
 * comes with the first layer, and with the last one all tensors outside of layers. */
static uint64_t file_bytes(const struct be *b, const struct gguf *file, uint32_t first,
                           uint32_t end) {
    bool tied = !gguf_find(file, "output.weight");
    uint64_t sum = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct tensor *t = gguf_tensor(file, i);
        uint32_t layer;

        bool in_layer = sscanf(t->name, "blk.%u.", &layer) == 1;
        if (in_layer && ffn_is_hosts(b->shape, layer) && is_ffn(t))
            continue;
        bool outside = end == b->shape->n_layer || (first == 0 && is_embedding(t));
        if (in_layer ? layer >= first && layer < end : outside)
            sum += in_layer && strstr(t->name, "_exps.") ? expert_bytes(b, t, layer)
                                                         : tensor_bytes(b, t, tied);
    }
    return sum;
}

/* Returns the bytes of a block drafter's file. Two ops may have a vector each; the norm before
 * keys is there for each layer. */
static uint64_t drafter_bytes(const struct be *b) {
    uint64_t sum = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(b->opts->block); i++) {
        const struct tensor *t = gguf_tensor(b->opts->block, i);

        bool twice = ends_in(t, "norm.weight") || ends_in(t, "_conv_base");

        sum += tensor_bytes(b, t, false) * (twice ? 2 : 1);
        if (is_embedding(t) && !is_first_device(b)) /* tensor_bytes() counts it on the first */
            sum += round_up(t->n_bytes, 512);
        if (ends_in(t, ".attn_k_norm.weight"))
            sum += round_up(b->shape->n_embd * sizeof(float), 512);
    }
    return sum;
}

/* Returns the bytes of the weights of norms that have none in the file. */
static uint64_t ones_bytes(const struct be *b) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < b->shape->n_ops; i++)
        if (b->shape->op[i].kind == OP_NORM && !b->shape->op[i].norm)
            sum += round_up(b->shape->n_embd * sizeof(float), 512);
    return sum;
}

uint64_t cuda_weight_bytes(const struct be *b) {
    uint32_t n = b->shape->n_layer;
    uint64_t sum = file_bytes(b, b->opts->file, b->layers.first, b->layers.end) + ones_bytes(b);

    if (b->shape->n_taps)
        sum += has_last_layer(b) ? drafter_bytes(b) : 0;
    else if (b->shape->drafts)
        sum += file_bytes(b, b->opts->block ? b->opts->block : b->opts->file, n,
                          n + b->shape->drafts) +
               2 * b->shape->drafts * round_up(b->shape->n_embd * sizeof(float), 512);
    return sum + b->shape->picture_weights;
}
