/*
 * arch - the table of architectures, and the hyperparameters that all of them have.
 *
 * A row of the table describes the differences of an architecture from a plain decoder
 * (decoder.h). An architecture whose layers are of other kinds has a bind function of its own, in
 * the file of its name. arch_bind_all() reads a model in this order:
 *
 *     hyperparameters    checked and bounded, since tensors' shapes are checked against them
 *     a->bind()          the ops of the model with their tensors, and its own hyperparameters
 *     RoPE               after the tensors, because it may need a tensor of divisors
 *     drafting part      MTP blocks of the file, or a part in a separate file (apart.h)
 *     sizes              pages, states and widths that follow from the ops (model_measure())
 *
 * A tensor of the file that no op has bound is an error (bind_rest()), since a model that is read
 * in part would give wrong results without notice.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/arch/apart.h"
#include "engine/arch/apertus.h"
#include "engine/arch/assistant.h"
#include "engine/arch/bailing3.h"
#include "engine/arch/decoder.h"
#include "engine/arch/deepseek2.h"
#include "engine/arch/deepseek4.h"
#include "engine/arch/dflash.h"
#include "engine/arch/encoder.h"
#include "engine/arch/falcon.h"
#include "engine/arch/gemma3n.h"
#include "engine/arch/gemma4.h"
#include "engine/arch/glm5.h"
#include "engine/arch/granite.h"
#include "engine/arch/hybrid.h"
#include "engine/arch/jamba.h"
#include "engine/arch/kimi.h"
#include "engine/arch/laguna.h"
#include "engine/arch/lfm2.h"
#include "engine/arch/llama4.h"
#include "engine/arch/minimax3.h"
#include "engine/arch/mtp.h"
#include "engine/arch/nemotron.h"
#include "engine/arch/plamo2.h"
#include "engine/arch/qwen4exp.h"
#include "engine/arch/step35.h"
#include "engine/arch/window.h"
#include "engine/archs.h"
#include "engine/experts.h"
#include "engine/head.h"
#include "engine/nearest.h"
#include "engine/rope.h"

/* most tensors of a file of an unknown architecture on which known ones are tried */
#define TRIED_TENSORS 20000u

/* A row of the table of architectures: the differences from a plain decoder. */
struct arch {
    /* general.architecture */
    const char *name;
    /* another name of files of such models, with which their keys begin; NULL: there is none */
    const char *alias;
    enum rope_type rope;
    enum { EXPERTS_NEVER, EXPERTS_MAY, EXPERTS_MUST } experts;
    /* numbers of heads and widths of FFNs may be arrays in the file, by layer */
    bool by_layer;
    /* values may be shorter than keys */
    bool short_values;
    /* rope_defaults.fixed_betas */
    bool fixed_betas;
    /* rope_defaults.half: of layers without a window */
    bool half_rope;
    /* adds an MTP block after the layers; NULL: models have none */
    block_fn mtp;
    enum mtp_norm mtp_norm;
    /* Adds the model's only MTP block in place of mtp_bind(). */
    void (*own_block)(struct binder *b, struct model *m);
    /* Rule by which experts are picked. by_keys: the file's keys say it, with @gating as the
     * default; normed: weights are divided by their sum whatever the keys say. All zero: softmax,
     * divided by their sum unless @unnormed, experts in all layers. gated_shared: the output of the
     * shared expert has a gate. */
    struct {
        bool by_keys, normed, unnormed, gated_shared;
        enum gating gating;
    } routing;
    /* LongRoPE: divisors of RoPE's frequencies are in one of two tensors */
    bool long_rope;
    enum rope_sections sections;
    /* the file's MTP blocks are ignored */
    bool no_drafts;
    bool no_rope;
    /* attention is latent: values and keys differ in size */
    bool latent;
    /* decoder.layer_norm: files with the key of RMS norms have these */
    bool may_rms;
    /* decoder.layer_norm: the epsilon has the key of RMS norms */
    bool rms_key;
    /* keys with factors of the embedding, of branches and of logits */
    enum bind_need scales;
    /* queries have a factor by position (struct temper) */
    bool temper;
    /* Adds the model's ops after the hyperparameters have been read. Errors are kept in the
     * binder. */
    void (*bind)(struct binder *b, struct model *m, const struct decoder *d);
    struct decoder decoder;
};

static const struct arch archs[] = {
    /* Llama 1 to 3, Mistral, TinyLlama, SmolLM; Mixtral with experts. The converter permutes the
     * rows of q and k so that RoPE rotates neighbours. A few derived models have biases. */
    {
        .name = "llama",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MAY,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .out_bias = BIND_MAY, .ffn_bias = BIND_MAY},
    },
    /* Qwen 2 and 2.5. */
    {
        .name = "qwen2",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MUST},
    },
    /* Qwen 3. The number of heads times the head size may differ from the embedding length. */
    {
        .name = "qwen3",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .qk_norm = BIND_MUST},
    },
    /* Qwen 3 with experts: 30B-A3B, 235B-A22B, Coder. */
    {
        .name = "qwen3moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .qk_norm = BIND_MUST},
    },
    /* Qwen3-Next, Qwen3-Coder-Next. */
    {
        .name = "qwen3next",
        .rope = ROPE_NEOX,
        .mtp = mtp_block,
        .experts = EXPERTS_MUST,
        .routing = {.gated_shared = true},
        .bind = hybrid_bind,
        .decoder = {.qk_norm = BIND_MUST, .ffn_norm = "post_attention_norm", .gated = true},
    },
    /* Qwen 3.5, 3.6 and 3.8. */
    {
        .name = "qwen35",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_INTERLEAVED,
        .mtp = mtp_block,
        .bind = hybrid_bind,
        .decoder =
            {.qk_norm = BIND_MUST, .ffn_norm = "post_attention_norm", .gated = true, .tiled = true},
    },
    {
        .name = "qwen35moe",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_INTERLEAVED,
        .mtp = mtp_block,
        .experts = EXPERTS_MUST,
        .routing = {.gated_shared = true},
        .bind = hybrid_bind,
        .decoder =
            {.qk_norm = BIND_MUST, .ffn_norm = "post_attention_norm", .gated = true, .tiled = true},
    },
    /* Qwen3.8-Flash-Next. */
    {
        .name = "qwen4exp",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_INTERLEAVED,
        .experts = EXPERTS_MUST,
        .routing = {.gated_shared = true},
        .no_drafts = true,
        .bind = qwen4exp_bind,
        .decoder = {.qk_norm = BIND_MUST, .streams = true, .gated = true, .tiled = true},
    },
    /* The text models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. */
    {
        .name = "qwen2vl",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_PLAIN,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MUST},
    },
    {
        .name = "qwen3vl",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_INTERLEAVED,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .qk_norm = BIND_MUST},
    },
    {
        .name = "qwen3vlmoe",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_INTERLEAVED,
        .experts = EXPERTS_MUST,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .qk_norm = BIND_MUST},
    },
    /* gpt-oss 20b and 120b. The ramp of YaRN begins and ends at whole pairs as in llama.cpp, with
     * which quantised files are evaluated; OpenAI's code does not round these ends. */
    {
        .name = "gpt-oss",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .fixed_betas = true,
        .bind = window_bind,
        .decoder = {.qkv_bias = BIND_MUST,
                    .out_bias = BIND_MUST,
                    .expert_bias = BIND_MUST,
                    .sinks = BIND_MUST,
                    .ffn_norm = "post_attention_norm",
                    .glu = GLU_CLAMPED,
                    .window_period = 2},
    },
    {
        .name = "gemma2",
        .rope = ROPE_NEOX,
        .bind = window_bind,
        .decoder = {.attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .glu = GLU_GELU,
                    .window = 4096,
                    .window_period = 2,
                    .wide_scores = 46,
                    .scaled_embedding = true},
    },
    {
        .name = "gemma3",
        .rope = ROPE_NEOX,
        .bind = window_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .glu = GLU_GELU,
                    .window_period = 6,
                    .window_rope = true,
                    .wide_scores = 62,
                    .scaled_embedding = true,
                    .two_way = true},
    },
    /* Gemma 3n E2B and E4B: the text model. */
    {
        .name = "gemma3n",
        .rope = ROPE_NEOX,
        .by_layer = true,
        .bind = gemma3n_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .glu = GLU_GELU,
                    .v_unit = true},
    },
    {
        .name = "gemma4",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MAY,
        .by_layer = true,
        .bind = gemma4_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .glu = GLU_GELU,
                    .v_unit = true},
    },
    /* Muse Glimmer. Only layers with a window have RoPE. */
    {
        .name = "muse-glimmer",
        .rope = ROPE_NORM,
        .no_rope = true,
        .bind = window_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .post_eps = 1e-8f,
                    .sigmoid_gate = true,
                    .window_period = 4,
                    .window_rope = true,
                    .same_base = true,
                    .unit_embedding = true,
                    .scaled_logits = true},
    },
    /* Granite 3 and 4 without recurrent layers. */
    {
        .name = "granite",
        .rope = ROPE_NORM,
        .scales = BIND_MAY,
        .bind = decoder_bind,
    },
    /* MiniCPM. Files of MiniCPM5 may name the architecture llama. Old files without the keys of the
     * factors are refused. */
    {
        .name = "minicpm",
        .rope = ROPE_NORM,
        .scales = BIND_MUST,
        .long_rope = true,
        .bind = decoder_bind,
    },
    /* Phi 3, 3.5 and 4. */
    {
        .name = "phi3",
        .rope = ROPE_NEOX,
        .long_rope = true,
        .bind = decoder_bind,
        .decoder = {.fused_qkv = true, .fused_ffn = true},
    },
    /* Ministral 3, Devstral Small 2, Mistral Medium 3.5. */
    {
        .name = "mistral3",
        .rope = ROPE_NORM,
        .temper = true,
        .bind = decoder_bind,
    },
    {
        .name = "lfm2",
        .rope = ROPE_NEOX,
        .by_layer = true,
        .bind = lfm2_bind,
        .decoder = {.qk_norm = BIND_MUST, .final_norm = "token_embd_norm", .windowed = true},
    },
    {
        .name = "lfm2moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SIGMOID},
        .bind = lfm2_bind,
        .decoder = {.qk_norm = BIND_MUST, .final_norm = "token_embd_norm", .pick_bias = BIND_MAY},
    },
    /* GLM 4.5 to 4.7, Air, 4.5V, 4.6V; Solar Open. */
    {
        .name = "glm4moe",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_PLAIN,
        .experts = EXPERTS_MUST,
        .mtp = mtp_block,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .qk_norm = BIND_MAY,
                    .ffn_norm = "post_attention_norm",
                    .pick_bias = BIND_MAY},
    },
    /* MiniMax M2 to M2.7. */
    {
        .name = "minimax-m2",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SIGMOID},
        .bind = decoder_bind,
        .decoder = {.qk_norm = BIND_MUST, .norm_all = true, .pick_bias = BIND_MUST},
    },
    /* MiniMax M3. */
    {
        .name = "minimax-m3",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = minimax3_bind,
        .decoder = {.qk_norm = BIND_MUST, .glu = GLU_CLAMPED, .pick_bias = BIND_MUST},
    },
    /* Nemotron H, Nemotron Nano 2. */
    {
        .name = "nemotron_h",
        .rope = ROPE_NEOX,
        .by_layer = true,
        .bind = nemotron_bind,
        .decoder = {.ffn_norm = "attn_norm", .glu = GLU_RELU, .no_gate = true},
    },
    /* Nemotron 3 and 3.5: Nano, Lightning. */
    {
        .name = "nemotron_h_moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .mtp = nemotron_block,
        .mtp_norm = MTP_CENTRED,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = nemotron_bind,
        .decoder =
            {.ffn_norm = "attn_norm", .glu = GLU_RELU, .no_gate = true, .pick_bias = BIND_MAY},
    },
    /* GLM-4.7-Flash, DeepSeek V2 and V3, Kimi K2. */
    {
        .name = "deepseek2",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .fixed_betas = true,
        .mtp = deepseek2_block,
        .routing = {.by_keys = true, .gating = GATING_SOFTMAX},
        .latent = true,
        .bind = deepseek2_bind,
        .decoder = {.pick_bias = BIND_MAY},
    },
    /* Mistral Small 4. */
    {
        .name = "mistral4",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .fixed_betas = true,
        .routing = {.by_keys = true, .gating = GATING_SOFTMAX},
        .latent = true,
        .bind = deepseek2_bind,
        .decoder = {.pick_bias = BIND_MAY},
    },
    {
        .name = "deepseek4",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .own_block = deepseek4_block,
        .routing = {.by_keys = true},
        .bind = deepseek4_bind,
    },
    /* Laguna XS and S. */
    {
        .name = "laguna",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .fixed_betas = true,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = laguna_bind,
        .decoder = {.qk_norm = BIND_MUST, .soft_gate = true, .pick_bias = BIND_MAY},
    },
    /* Step 3.5 and 3.7 Flash. */
    {
        .name = "step35",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .half_rope = true,
        .mtp = step35_block,
        .mtp_norm = MTP_LATE,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = step35_bind,
        .decoder = {.qk_norm = BIND_MUST, .sigmoid_gate = true, .pick_bias = BIND_MAY},
    },
    /* MiMo V2 Flash, V2.5. */
    {
        .name = "mimo2",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .short_values = true,
        .mtp = step35_block,
        .mtp_norm = MTP_LATE,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SIGMOID},
        .bind = step35_bind,
        .decoder = {.may_fuse_qkv = true, .sinks = BIND_MAY, .pick_bias = BIND_MAY},
    },
    /* Ling 3.0: flash, tiny. */
    {
        .name = "bailingmoe3",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .mtp = bailing3_block,
        .mtp_norm = MTP_NAMED,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .latent = true,
        .bind = bailing3_bind,
        .decoder = {.pick_bias = BIND_MAY},
    },
    /* Kimi Linear 48B-A3B. */
    {
        .name = "kimi-linear",
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .no_rope = true,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SIGMOID},
        .latent = true,
        .bind = kimi_bind,
        .decoder = {.pick_bias = BIND_MAY},
    },
    /* GLM-5.3-Flash, by llama.cpp and by other programs. */
    {
        .name = "glm5-next",
        .alias = "glm5next",
        .experts = EXPERTS_MUST,
        .by_layer = true,
        .mtp = glm5_block,
        .no_rope = true,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .latent = true,
        .bind = glm5_bind,
        .decoder = {.pick_bias = BIND_MUST},
    },
    /* BERT: bge, MiniLM, e5, gte; and models derived from RoBERTa, which have the same name. */
    {
        .name = "bert",
        .no_rope = true,
        .bind = encoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .unnormed = true,
                    .glu = GLU_GELU,
                    .no_gate = true,
                    .positions = true},
    },
    /* nomic-embed-text 1 and 1.5. */
    {
        .name = "nomic-bert",
        .rope = ROPE_NEOX,
        .bind = encoder_bind,
        .decoder = {.unnormed = true, .fused_qkv = true},
    },
    {
        .name = "jina-bert-v2",
        .no_rope = true,
        .bind = encoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .unnormed = true,
                    .glu = GLU_GELU,
                    .alibi = true},
    },
    /* nomic-embed-text 2. */
    {
        .name = "nomic-bert-moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.unnormed = true},
        .bind = encoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .unnormed = true,
                    .glu = GLU_GELU,
                    .no_gate = true,
                    .fused_qkv = true},
    },
    /* jina-embeddings-v3 without its adapters. */
    {
        .name = "jina-bert-v3",
        .rope = ROPE_NEOX,
        .bind = encoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .unnormed = true,
                    .glu = GLU_GELU,
                    .no_gate = true,
                    .fused_qkv = true},
    },
    /* ModernBERT: gte-modernbert, granite-embedding-r2, nomic's modernbert-embed. */
    {
        .name = "modern-bert",
        .rope = ROPE_NEOX,
        .bind = encoder_bind_normed,
        .decoder = {.layer_norm = true,
                    .glu = GLU_GELU,
                    .fused_qkv = true,
                    .fused_ffn = true,
                    .embed_norm = "token_embd_norm",
                    .lead_unnormed = true,
                    .lead_whole = true,
                    .window_period = 3,
                    .window_rope = true},
    },
    /* EmbeddingGemma. */
    {
        .name = "gemma-embedding",
        .rope = ROPE_NEOX,
        .bind = encoder_bind_normed,
        .decoder = {.qk_norm = BIND_MUST,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .glu = GLU_GELU,
                    .window_period = 6,
                    .window_rope = true,
                    .scaled_embedding = true},
    },
    /* EuroBERT. */
    {
        .name = "eurobert",
        .rope = ROPE_NEOX,
        .bind = encoder_bind_normed,
    },
    /* SmolLM3. Every fourth layer has no rotary positions. */
    {
        .name = "smollm3",
        .rope = ROPE_NORM,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .plain_period = 4},
    },
    /* Seed-OSS. */
    {
        .name = "seed_oss",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .ffn_norm = "post_attention_norm"},
    },
    /* GLM-4-0414, GLM-Z1: 9B and 32B. GLM-4.1V, 4.6V Flash: with sections, and pairs as in NEOX. */
    {
        .name = "glm4",
        .rope = ROPE_NORM,
        .sections = SECTIONS_PLAIN,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .fused_ffn = true,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm"},
    },
    /* EXAONE 4: 1.2B without windows; 32B, whose layers with a window alone have RoPE. */
    {
        .name = "exaone4",
        .rope = ROPE_NEOX,
        .bind = window_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .unnormed = true,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .window_period = 4,
                    .window_only_rope = true},
    },
    /* ERNIE 4.5 0.3B; InternLM 2, 2.5 and 3. */
    {
        .name = "ernie4_5",
        .alias = "internlm2",
        .rope = ROPE_NORM,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY},
    },
    /* Gemma 1, CodeGemma. */
    {
        .name = "gemma",
        .rope = ROPE_NEOX,
        .bind = window_bind,
        .decoder = {.glu = GLU_GELU, .scaled_embedding = true},
    },
    /* Nanbeige 4.2. */
    {
        .name = "nanbeige",
        .rope = ROPE_NORM,
        .bind = decoder_bind,
        .decoder = {.loops = true},
    },
    /* Arcee AFM 4.5B. */
    {
        .name = "arcee",
        .rope = ROPE_NORM,
        .bind = decoder_bind,
        .decoder = {.glu = GLU_RELU, .no_gate = true},
    },
    /* Qwen1.5-MoE, Qwen2-57B-A14B. */
    {
        .name = "qwen2moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.unnormed = true, .gated_shared = true},
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MUST},
    },
    /* OLMoE 1B-7B. */
    {
        .name = "olmoe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.unnormed = true},
        .bind = decoder_bind,
        .decoder = {.qk_norm = BIND_MUST, .norm_all = true},
    },
    /* DeepSeek 16B (the first), GigaChat 20B; Ling 1, the first with this name. */
    {
        .name = "deepseek",
        .alias = "bailingmoe",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .gating = GATING_SOFTMAX},
        .bind = decoder_bind,
    },
    /* ERNIE 4.5 21B-A3B, 300B-A47B. */
    {
        .name = "ernie4_5-moe",
        .rope = ROPE_NORM,
        .mtp = mtp_dense_block,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SOFTMAX},
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .pick_bias = BIND_MAY},
    },
    /* dots.llm1. */
    {
        .name = "dots1",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = decoder_bind,
        .decoder = {.qk_norm = BIND_MUST, .pick_bias = BIND_MAY},
    },
    /* Granite 3 and 4 with experts and without recurrent layers. */
    {
        .name = "granitemoe",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SOFTMAX},
        .scales = BIND_MAY,
        .bind = decoder_bind,
    },
    /* Arcee Trinity. */
    {
        .name = "afmoe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = window_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .pick_bias = BIND_MAY,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .sigmoid_gate = true,
                    .window_period = 4,
                    .window_only_rope = true,
                    .scaled_embedding = true},
    },
    /* Ling 2.0, Ring 2.0. */
    {
        .name = "bailingmoe2",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .no_drafts = true,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = decoder_bind,
        .decoder = {.qk_norm = BIND_MUST, .fused_qkv = true, .pick_bias = BIND_MAY},
    },
    /* K-EXAONE. */
    {
        .name = "exaone-moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .no_drafts = true,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = window_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .pick_bias = BIND_MAY,
                    .window_period = 4,
                    .window_only_rope = true},
    },
    /* Granite 4 H: tiny, small, micro. */
    {
        .name = "granitehybrid",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MAY,
        .by_layer = true,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SOFTMAX},
        .scales = BIND_MAY,
        .bind = granite_bind,
    },
    /* Falcon-H1: 0.5B to 34B. */
    {
        .name = "falcon-h1",
        .rope = ROPE_NEOX,
        .bind = falcon_bind,
        .decoder = {.bare_ffn_norm = true},
    },
    /* PLaMo 2: 1B, 8B, translate. */
    {
        .name = "plamo2",
        .rope = ROPE_NEOX,
        .by_layer = true,
        .bind = plamo2_bind,
        .decoder = {.fused_qkv = true,
                    .fused_ffn = true,
                    .qk_norm = BIND_MUST,
                    .norm_each = true,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .bare_post_norms = true},
    },
    /* PLaMo 3. */
    {
        .name = "plamo3",
        .rope = ROPE_NEOX,
        .bind = window_bind,
        .decoder = {.fused_qkv = true,
                    .fused_ffn = true,
                    .qk_norm = BIND_MUST,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .bare_post_norms = true,
                    .window_period = 8,
                    .window_rope = true},
    },
    /* EXAONE 3 and 3.5. */
    {
        .name = "exaone",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
    },
    /* Hunyuan dense: 0.5B to 7B, Hunyuan-MT. */
    {
        .name = "hunyuan-dense",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qk_norm = BIND_MUST, .norm_late = true},
    },
    /* HunyuanOCR, HunyuanVL: the dense models with a fourth rotary position. */
    {
        .name = "hunyuan_vl",
        .rope = ROPE_NEOX,
        .sections = SECTIONS_XD,
        .bind = decoder_bind,
        .decoder = {.qk_norm = BIND_MUST, .norm_late = true},
    },
    /* Hunyuan A13B. */
    {
        .name = "hunyuan-moe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .routing = {.by_keys = true, .normed = true, .gating = GATING_SOFTMAX},
        .bind = decoder_bind,
        .decoder = {.qk_norm = BIND_MUST, .norm_late = true},
    },
    /* Apertus 8B, 70B. */
    {
        .name = "apertus",
        .rope = ROPE_NEOX,
        .bind = apertus_bind,
        .decoder = {.qk_norm = BIND_MUST, .glu = GLU_XIELU, .no_gate = true},
    },
    /* Command R (35B), Aya 23 and Expanse. */
    {
        .name = "command-r",
        .rope = ROPE_NORM,
        .bind = window_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .layer_norm = true,
                    .parallel = true,
                    .scaled_logits = true},
    },
    /* Command R7B, Command A, Aya's successors. */
    {
        .name = "cohere2",
        .rope = ROPE_NORM,
        .bind = window_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .layer_norm = true,
                    .parallel = true,
                    .window_period = 4,
                    .window_only_rope = true,
                    .scaled_logits = true},
    },
    /* Command A with experts, North Code. */
    {
        .name = "cohere2moe",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .no_drafts = true,
        .may_rms = true,
        .routing = {.by_keys = true, .gating = GATING_SIGMOID},
        .bind = window_bind,
        .decoder = {.layer_norm = true,
                    .parallel = true,
                    .halves = true,
                    .lead_rope = true,
                    .window_period = 4,
                    .window_only_rope = true,
                    .scaled_logits = true},
    },
    /* OLMo 1: layer norms without weights. Files that limit queries, keys and values (OLMo 1.7 7B)
     * are refused. */
    {
        .name = "olmo",
        .rope = ROPE_NORM,
        .bind = decoder_bind,
        .decoder = {.layer_norm = true, .plain_norm = true},
    },
    /* StarCoder 2. */
    {
        .name = "starcoder2",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .ffn_bias = BIND_MAY,
                    .layer_norm = true,
                    .norm_bias = BIND_MUST,
                    .glu = GLU_GELU,
                    .no_gate = true},
    },
    /* StableLM 3B and 2 1.6B, without norms of queries and keys. */
    {
        .name = "stablelm",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY, .layer_norm = true, .norm_bias = BIND_MUST},
    },
    /* Nemotron 4, Minitron. */
    {
        .name = "nemotron",
        .rope = ROPE_NEOX,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MAY,
                    .out_bias = BIND_MAY,
                    .ffn_bias = BIND_MAY,
                    .layer_norm = true,
                    .norm_bias = BIND_MUST,
                    .glu = GLU_RELU,
                    .no_gate = true},
    },
    /* Llama 4 Scout and Maverick: the text model. */
    {
        .name = "llama4",
        .rope = ROPE_NORM,
        .experts = EXPERTS_MUST,
        .routing = {.unnormed = true},
        .bind = llama4_bind,
    },
    /* Jamba: Mini, Large, 3B Reasoning. */
    {
        .name = "jamba",
        .experts = EXPERTS_MAY,
        .by_layer = true,
        .no_rope = true,
        .routing = {.unnormed = true},
        .bind = jamba_bind,
    },
    /* Phi-3.5-MoE. The published model has layer norms, whose epsilon files call that of RMS
     * norms, and picks experts in a way of its own; llama.cpp 0.7.0 computes neither. */
    {
        .name = "phimoe",
        .rope = ROPE_NEOX,
        .experts = EXPERTS_MUST,
        .rms_key = true,
        .routing = {.unnormed = true, .gating = GATING_MASKED},
        .long_rope = true,
        .bind = decoder_bind,
        .decoder = {.qkv_bias = BIND_MUST,
                    .out_bias = BIND_MUST,
                    .layer_norm = true,
                    .norm_bias = BIND_MUST,
                    .output_bias = BIND_MUST},
    },
    /* Olmo 2 and 3. Layers of Olmo 3 with a window have RoPE without scaling. */
    {
        .name = "olmo2",
        .rope = ROPE_NEOX,
        .fixed_betas = true,
        .bind = window_bind,
        .decoder = {.qk_norm = BIND_MUST,
                    .norm_all = true,
                    .unnormed = true,
                    .attn_post_norm = "post_attention_norm",
                    .ffn_post_norm = "post_ffw_norm",
                    .window_period = 4,
                    .window_rope = true,
                    .same_base = true},
    },
};

/* Architectures that are not models that this program can serve alone, or whose files were made for
 * another program, with hints for the error message. */
static const struct {
    const char *name, *hint;
} renamed[] = {
    {"clip", "a projector (mmproj), which belongs to a text model"},
    {"gptoss", "a file made for Ollama: take a GGUF file of gpt-oss made for llama.cpp"},
    {ASSISTANT_ARCH, "it is a draft model; give it as draft-model of a gemma4 model"},
    {DFLASH_ARCH, "it is a block drafter; give it as draft-model of the model it was made for"},
};

/* Refuses a file whose architecture @name is unknown, with the nearest known one and the first
 * difference from it. */
static int refuse_unknown(const struct gguf *file, struct gguf_str name, struct err *err) {
    CLEANUP(freep) struct nearest *near = malloc(sizeof(*near));
    int len = (int)MIN(name.len, 64u), n = 0;

    if (near && gguf_n_tensors(file) > 0 && gguf_n_tensors(file) <= TRIED_TENSORS)
        n = engine_nearest(file, near, 1);
    if (n <= 0)
        return err_set(err, 0, NULL, "architecture '%.*s' is not supported (%s)", len, name.data,
                       "docs/reference/architectures.md has the supported ones");
    if (near->accepts)
        return err_set(err, 0, NULL,
                       "architecture '%.*s' is not supported; all its tensors fit '%s', which may "
                       "compute something else: --override-kv general.architecture=str:%s tries it "
                       "(`weft-gguf info --nearest` says more)",
                       len, name.data, near->name, near->name);
    return err_set(err, 0, NULL,
                   "architecture '%.*s' is not supported; the nearest is '%s' (--override-kv "
                   "general.architecture=str:%s): %.150s (`weft-gguf info --nearest` says more)",
                   len, name.data, near->name, near->name, near->why);
}

/* Returns true if @name is @own; NULL is no name. */
static bool arch_is_named(struct gguf_str name, const char *own) {
    return own && name.len == strlen(own) && memcmp(name.data, own, name.len) == 0;
}

/* Returns which of the names of @a is @name, or NULL. */
static const char *arch_name_in(const struct arch *a, struct gguf_str name) {
    if (arch_is_named(name, a->name))
        return a->name;
    if (arch_is_named(name, a->alias))
        return a->alias;
    return NULL;
}

/* Finds the row of general.architecture, and which of its names the file has. Returns 0, or -EINVAL
 * with a hint in @err. */
static int find_arch(const struct gguf *file, const struct arch **out, const char **own,
                     struct err *err) {
    struct gguf_str name;

    if (gguf_string(file, "general.architecture", &name) < 0)
        return err_set(err, 0, NULL, "the model file has no 'general.architecture'");
    for (size_t i = 0; i < ARRAY_SIZE(archs); i++) {
        const char *found = arch_name_in(&archs[i], name);

        if (!found)
            continue;
        *out = &archs[i];
        *own = found;
        return 0;
    }
    for (size_t i = 0; i < name.len; i++)
        if (name.data[i] < 0x20 || name.data[i] > 0x7E)
            return err_set(err, 0, NULL, "'general.architecture' is not a valid name");
    for (size_t i = 0; i < ARRAY_SIZE(renamed); i++)
        if (arch_is_named(name, renamed[i].name))
            return err_set(err, 0, NULL, "architecture '%s' is not supported: %s", renamed[i].name,
                           renamed[i].hint);
    return refuse_unknown(file, name, err);
}

/* Reads the rule by which experts are picked from the keys of the file. */
static void read_routing(struct binder *b, const struct arch *arch, struct model *model) {
    struct model_shape *s = &model->shape;
    uint32_t func = 0, n_shared = 0, width = 0;
    meta_u32_opt(b, "expert_gating_func", 0, arch->bind == deepseek4_bind ? 4 : 2, &func);
    meta_u32_opt(b, "leading_dense_block_count", 0, MODEL_LAYERS_MAX, &model->n_lead);
    meta_u32_opt(b, "expert_shared_count", 0, 64, &n_shared);
    meta_u32_opt(b, "expert_shared_feed_forward_length", 0, 1u << 20, &width);
    meta_refuse_other(b, "interleave_moe_layer_step", 1);
    s->gating = arch->routing.gating;
    if (func != 0)
        s->gating = func == 1 ? GATING_SOFTMAX : GATING_SIGMOID;
    s->unnormed = !meta_bool(b, "expert_weights_norm") && !arch->routing.normed;
    if (width)
        model->n_ff_common = width;
    else
        model->n_ff_common = n_shared * s->n_ff_expert;
}

/* Reads the groups of experts. A single group is the same as no groups. */
static void read_groups(struct binder *b, struct model_shape *s) {
    uint32_t n = 1, used = 1;

    meta_u32_opt(b, "expert_group_count", 1, EXPERT_GROUPS_MAX, &n);
    meta_u32_opt(b, "expert_group_used_count", 1, n, &used);
    if (b->r < 0 || n == 1)
        return;
    s->n_expert_group = n;
    s->n_group_used = used;
    if (s->n_expert % n || s->n_expert / n * used < s->n_expert_used)
        bind_refuse(b, "%u experts in %u groups, of which %u are used, do not give %u picks",
                    s->n_expert, n, used, s->n_expert_used);
}

/* Reads an optional integer, or the largest of an array with a number for each layer. */
static void read_most(struct binder *b, const struct arch *a, const char *key, uint32_t hi,
                      uint32_t n_layer, uint32_t *out) {
    uint32_t by_layer[MODEL_LAYERS_MAX], most = 0;

    if (b->r < 0 || !a->by_layer || !gguf_array(b->file, meta_key(b, key).s)) {
        meta_u32_opt(b, key, 1, hi, out);
        return;
    }
    meta_u32_layers(b, key, 0, hi, n_layer, by_layer);
    for (uint32_t i = 0; i < n_layer && b->r == 0; i++)
        most = MAX(most, by_layer[i]);
    if (b->r == 0 && most > 0)
        *out = most;
}

/* Reads the hyperparameters of experts, and refuses those that differ from OP_ROUTE (op_list.h). */
static void read_experts(struct binder *b, const struct arch *arch, struct model *model) {
    struct model_shape *s = &model->shape;
    uint32_t n = s->n_layer + model->n_mtp;
    double scale = 0;

    s->expert_scale = 1;
    meta_u32_opt(b, "expert_count", 0, MODEL_EXPERTS_MAX, &s->n_expert);
    if (b->r < 0 || (s->n_expert == 0 && arch->experts != EXPERTS_MUST))
        return;
    if (arch->experts == EXPERTS_NEVER) {
        bind_refuse(b, "%s models with experts (%u here) are not supported", b->arch, s->n_expert);
        return;
    }
    meta_u32(b, "expert_count", 1, MODEL_EXPERTS_MAX, &s->n_expert);
    read_most(b, arch, "expert_used_count", s->n_expert, n, &s->n_expert_used);
    if (!s->n_expert_used)
        meta_u32(b, "expert_used_count", 1, s->n_expert, &s->n_expert_used);
    s->n_ff_expert = s->n_ff;
    read_most(b, arch, "expert_feed_forward_length", 1u << 20, n, &s->n_ff_expert);
    if (!s->n_ff)
        s->n_ff = s->n_ff_expert;
    if (b->r == 0 && !s->n_ff_expert)
        meta_u32(b, "feed_forward_length", 1, 1u << 20, &s->n_ff_expert);
    meta_f32_opt(b, "expert_weights_scale", 0, 1e3, &scale);
    if (arch->routing.by_keys)
        read_groups(b, s);
    else
        meta_refuse_other(b, "expert_group_count", 1);
    if (scale > 0)
        s->expert_scale = (float)scale;
    if (arch->routing.by_keys) {
        read_routing(b, arch, model);
        return;
    }
    meta_refuse_other(b, "expert_gating_func", 1);
    s->unnormed = arch->routing.unnormed;
    s->gating = arch->routing.gating;
    if (arch->routing.gated_shared) {
        meta_u32_opt(b, "expert_shared_feed_forward_length", 0, 1u << 20, &s->n_ff_shared);
        meta_refuse_other(b, "expert_shared_count", 1);
    } else {
        meta_refuse_other(b, "expert_shared_count", 0);
    }
    meta_refuse_other(b, "leading_dense_block_count", 0);
}

/* Reads the epsilon of norms. Returns -1 if the file has none. A file of an architecture with layer
 * norms has RMS norms if it has their key and the row says that it may. */
static double read_eps(struct binder *b, const struct arch *a, struct model_shape *s) {
    bool layer_norm = a->decoder.layer_norm;
    double eps = -1, rms = -1;

    if (a->rms_key)
        meta_f32_opt(b, "attention.layer_norm_rms_epsilon", 0, 0.1, &eps);
    else if (layer_norm || a->bind == nemotron_bind || a->bind == encoder_bind)
        meta_f32_opt(b, "attention.layer_norm_epsilon", 0, 0.1, &eps);
    if (!layer_norm || a->may_rms)
        meta_f32_opt(b, "attention.layer_norm_rms_epsilon", 0, 0.1, &rms);
    s->layer_norm = layer_norm && rms <= 0;
    if (s->layer_norm || rms < 0)
        return eps;
    return rms;
}

/* Reads the number of values of a head's value, which may be less than a key's if the row says so.
 * Runs of the Hadamard matrices of values (shape.h) have up to 64. */
static void read_value_size(struct binder *b, const struct arch *a, struct model_shape *s) {
    uint32_t n = s->head_dim;

    meta_u32_opt(b, "attention.value_length", 1, 1024, &n);
    if (n == s->head_dim || a->latent)
        return;
    if (!a->short_values)
        bind_refuse(
            b,
            "heads with keys of %u and values of %u numbers are not supported; both must be equal",
            s->head_dim, n);
    else if (n > s->head_dim || n % 64)
        bind_refuse(b,
                    "heads with keys of %u and values of %u numbers are not supported; values of a "
                    "multiple of 64, not more than the key's, are needed",
                    s->head_dim, n);
    s->value_dim = n;
}

/* Reads the hyperparameters that every architecture has. Sizes are bounded so that a product of two
 * fits into 64 bits, and a head's number of values into 32. */
static void read_shape(struct binder *b, const struct arch *a, struct model *model) {
    struct model_shape *s = &model->shape;
    double scale = 0, clamp = 0;

    meta_u32(b, "block_count", 1, MODEL_LAYERS_MAX, &s->n_layer);
    meta_u32(b, "embedding_length", 1, 1u << 18, &s->n_embd);
    if (a->by_layer)
        read_most(b, a, "attention.head_count", 1u << 12, s->n_layer, &s->n_head);
    if (!s->n_head)
        meta_u32(b, "attention.head_count", 1, 1u << 12, &s->n_head);
    read_most(b, a, "feed_forward_length", 1u << 20, s->n_layer, &s->n_ff);
    meta_u32(b, "context_length", 1, 1u << 26, &s->max_context);
    s->n_head_kv = s->n_head;
    if (s->n_head)
        s->head_dim = s->n_embd / s->n_head;
    else
        s->head_dim = 0;
    read_most(b, a, "attention.head_count_kv", s->n_head, s->n_layer, &s->n_head_kv);
    meta_u32_opt(b, "attention.key_length", 1, 1024, &s->head_dim);
    double eps = read_eps(b, a, s);
    meta_f32_opt(b, "attention.scale", 0, 1e3, &scale);
    meta_f32_opt(b, "attention.clamp_kqv", 0, 1e6, &clamp);
    if (b->r < 0)
        return;
    if (clamp > 0)
        bind_refuse(b, "queries limited by '%s' are not supported",
                    meta_key(b, "attention.clamp_kqv").s);
    if (eps < 0)
        bind_refuse(b, "the model file has no '%s'",
                    meta_key(b, "attention.layer_norm_rms_epsilon").s);
    else if (s->n_head % s->n_head_kv && !a->by_layer)
        bind_refuse(b, "%u heads cannot share %u key heads evenly", s->n_head, s->n_head_kv);
    else if (s->head_dim < 2 || s->head_dim > 1024 || s->head_dim % 2)
        bind_refuse(b, "heads have %u values; an even number from 2 to 1024 is needed",
                    s->head_dim);
    read_value_size(b, a, s);
    if (a->mtp || a->own_block || a->no_drafts)
        meta_u32_opt(b, "nextn_predict_layers", 0, s->n_layer - 1, &model->n_mtp);
    s->n_layer -= model->n_mtp;
    s->rms_eps = (float)eps;
    if (scale > 0)
        s->attn_scale = (float)scale;
    else
        s->attn_scale = (float)(1.0 / sqrt((double)s->head_dim));
}

/* Sets the size of the vocabulary to the number of rows of the embedding, which must not be less
 * than the number of the tokenizer's tokens. */
static void read_vocab(struct binder *b, struct model_shape *s) {
    const struct tensor *t = gguf_find(b->file, "token_embd.weight");
    const struct gguf_array *tokens = gguf_array(b->file, "tokenizer.ggml.tokens");

    if (b->r < 0)
        return;
    if (!t)
        bind_refuse(b, "the model file has no tensor 'token_embd.weight'");
    else if (t->ne[1] > 1u << 24)
        bind_refuse(b, "a vocabulary of %llu tokens is not supported",
                    (unsigned long long)t->ne[1]);
    else if (tokens && gguf_array_n(tokens) > t->ne[1])
        bind_refuse(b, "the tokenizer has %llu tokens, the model %llu",
                    (unsigned long long)gguf_array_n(tokens), (unsigned long long)t->ne[1]);
    else
        s->n_vocab = (uint32_t)t->ne[1];
}

/* Reads the scalar factors of activations. Granite and MiniCPM divide logits by theirs. */
static void read_scales(struct binder *b, const struct arch *a, struct model *model) {
    static const char *const keys[] = {"embedding_scale", "residual_scale", "logit_scale"};
    double v[3] = {0};

    for (int i = 0; i < 3 && a->scales; i++) {
        meta_f32_opt(b, keys[i], 0, 1e6, &v[i]);
        if (b->r == 0 && v[i] == 0 && a->scales == BIND_MUST)
            bind_refuse(b, "the model file has no '%s'", meta_key(b, keys[i]).s);
    }
    model->scale.embedding = (float)v[0];
    model->scale.residual = (float)v[1];
    if (v[2] != 0)
        model->scale.logits = (float)(1 / v[2]);
    else
        model->scale.logits = 0;
    if (v[1] != 0) /* OP_EXPERTS has no gain of its own */
        model->shape.expert_scale *= (float)v[1];
    double slope = 0;
    model->temper.span = model->shape.max_context;
    if (!a->temper)
        return;
    meta_f32_opt(b, "attention.temperature_scale", 0, 1e3, &slope);
    meta_u32_opt(b, "rope.scaling.original_context_length", 1, 1u << 30, &model->temper.span);
    model->temper.slope = (float)slope;
}

/* Reads the number of values of a picture's row, which includes those that the first layers add
 * (OP_DEEP). */
static void read_pictures(struct binder *b, struct model *model) {
    uint32_t n_deep = 0;

    meta_u32_opt(b, "n_deepstack_layers", 0, model->shape.n_layer, &n_deep);
    model->shape.n_picture = model->shape.n_embd * (1 + n_deep);
}

/* Reads the hyperparameters that are not special to one architecture. */
static void arch_read_all(struct binder *b, struct model *m, const struct arch *a, bool pictures) {
    read_shape(b, a, m);
    read_experts(b, a, m);
    if (!m->shape.n_ff) /* the key may be absent only if all layers have experts */
        meta_u32(b, "feed_forward_length", 1, 1u << 20, &m->shape.n_ff);
    read_vocab(b, &m->shape);
    read_scales(b, a, m);
    if (pictures)
        read_pictures(b, m);
}

/* Returns the tensor of divisors of RoPE's frequencies, or NULL. A file for LongRoPE has two; the
 * long one is for contexts longer than the original. The choice depends on the largest context that
 * is served, so that it does not change while a sequence grows. */
static const struct tensor *rope_divisors(struct binder *b, const struct arch *a,
                                          const struct model *m, uint32_t max_context) {
    uint32_t context = max_context ? max_context : m->shape.max_context, original = context;

    if (!a->long_rope)
        return bind_any(b, "rope_freqs.weight");
    const struct tensor *near = bind_any(b, "rope_factors_short.weight");
    const struct tensor *far = bind_any(b, "rope_factors_long.weight");
    meta_u32_opt(b, "rope.scaling.original_context_length", 1, 1u << 30, &original);
    if (context > original)
        return far;
    return near;
}

/* Returns true if the heads of a model are not rotated. A file of Granite may say so. */
static bool lacks_rope(const struct binder *b, const struct arch *a) {
    bool rotates = true;

    if (a->scales)
        gguf_bool(b->file, meta_key(b, "rope.scaling.finetuned").s, &rotates);
    return a->no_rope || !rotates;
}

/* Reads the hyperparameters, then binds the tensors, whose shapes are checked against them. RoPE is
 * read after the layers, because it may need a tensor of divisors. @survey: NULL, or as in
 * arch_try(). Returns 0 or -errno. */
static int arch_bind_all(struct model *m, const struct arch *a, const struct engine_opts *o,
                         bool drafts, struct survey *survey, struct err *err) {
    const struct gguf *file = o->file, *block = drafts ? o->block : NULL;
    struct binder b;

    if (bind_init(&b, file, survey ? survey->prefix : m->arch, err) < 0)
        return -ENOMEM;
    b.row = m->arch;
    b.survey = survey;
    arch_read_all(&b, m, a, o->projector != NULL);
    if (b.r < 0) {
        bind_deinit(&b);
        return b.r;
    }
    a->bind(&b, m, &a->decoder);
    const struct tensor *output = NULL;

    if (m->n_ops)
        output = m->op[m->n_ops - 1].w[0];
    m->pass[PASS_MODEL].run[0].end = m->n_ops;
    const struct rope_defaults rope = {
        .dim = m->shape.head_dim,
        .context = m->shape.max_context,
        .base = 10000,
        .suffix = "",
        .scaled = a->bind != step35_bind && a->bind != deepseek4_bind,
        .half = a->half_rope,
        .fixed_betas = a->fixed_betas,
        .alpha = a->sections == SECTIONS_XD,
        .long_rope = a->long_rope,
        .scores_scaled = a->bind == deepseek2_bind,
    };
    if (!lacks_rope(&b, a))
        rope_read(&b, &rope, rope_divisors(&b, a, m, o->max_context), &m->shape.rope[0]);
    rope_read_sections(&b, a->sections, &m->shape.rope[0]);
    if (m->shape.rope[0].axis)
        m->shape.rope_type = ROPE_NEOX;
    uint32_t own = 0;

    if (drafts && (a->mtp || a->own_block) && !block)
        own = mtp_found(&b, m);
    if (a->own_block)
        own = MIN(own, 1u);
    if (drafts && !block && m->n_mtp && !own)
        snprintf(m->no_drafts, sizeof(m->no_drafts), "%s",
                 a->no_drafts ? "blocks of this architecture are not supported"
                              : "the file does not have its tensors");
    for (uint32_t l = m->shape.n_layer + own; l < m->shape.n_layer + m->n_mtp; l++)
        bind_skip(&b, l);
    if (own && a->own_block)
        a->own_block(&b, m);
    else if (own)
        mtp_bind(&b, m, &a->decoder, a->mtp, a->mtp_norm);
    else if (block)
        apart_bind(&b, m,
                   &(struct apart_of){.arch = m->arch,
                                      .decoder = &a->decoder,
                                      .mtp = a->mtp,
                                      .norm = a->mtp_norm,
                                      .own_block = a->own_block,
                                      .assisted = a->bind == gemma4_bind},
                   block);
    if (b.r == 0 && m->r == 0) {
        model_measure(m);
        if (!m->shape.n_kv_layer[KV_GLOBAL] && !m->shape.n_kv_layer[KV_WINDOW] &&
            !m->shape.compressed.window)
            bind_refuse(&b, "models without attention are not supported");
        head_bind(&b, &m->head, m->shape.n_embd, output);
    }
    bind_rest(&b);
    enum op_kind last = b.r < 0 || m->r < 0 ? OP_LOGITS : m->op[m->n_ops - 1].kind;
    assert(last == OP_LOGITS || last == OP_SELECT || last == OP_CHAIN);
    m->weight_bytes = b.weight_bytes;
    m->n_params = b.n_params;
    m->views = STEAL(b.views);
    bind_deinit(&b);
    if (b.r < 0)
        return b.r;
    return m->r;
}

/* Does what arch_read() does, for architecture @a, which the file calls @name. */
static int read_as(struct model *m, const struct arch *a, const char *name,
                   const struct engine_opts *o, bool drafts, struct survey *survey,
                   struct err *err) {
    *m = (struct model){.arch = name, .shape.rope_type = a->rope};
    int r = arch_bind_all(m, a, o, drafts, survey, err);
    if (r < 0)
        model_deinit(m);
    return r;
}

/* If the model's own MTP block is malformed, the model is read without it, and m->no_drafts says
 * why. An error of a block in a separate file is returned, because the user named that file. */
int arch_read(struct model *m, const struct engine_opts *o, bool drafts, struct err *err) {
    const struct arch *a = NULL;
    const char *name;

    *m = (struct model){0};
    TRY(find_arch(o->file, &a, &name, err));
    int r = read_as(m, a, name, o, drafts, NULL, err);
    if (r == -EINVAL && drafts && !o->block) {
        struct err why = *err;

        *err = (struct err){0};
        r = read_as(m, a, name, o, false, NULL, err);
        if (r == 0)
            snprintf(m->no_drafts, sizeof(m->no_drafts), "%s", why.message);
    }
    return r;
}

int arch_try(const struct gguf *file, uint32_t i, struct survey *s, const char **name,
             struct err *err) {
    struct model m;

    if (i >= ARRAY_SIZE(archs))
        return -ENOENT;
    *name = archs[i].name;
    TRY(read_as(&m, &archs[i], *name, &(struct engine_opts){.file = file}, false, s, err));
    model_deinit(&m);
    return 0;
}

int engine_nearest(const struct gguf *file, struct nearest *out, int n) {
    return nearest_find(file, arch_try, out, n);
}
