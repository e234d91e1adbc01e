/*
 * vision - the image encoder in a folder, as a projector file (vision/projector.h) in memory.
 *
 * Matrices stay in their files, from which the backend loads them. Copied are quantised ones, which
 * become halves, those of kernels, and vectors, which become F32.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/files.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantised.h"
#include "checkpoint/reader.h"
#include "text/hf_tokenizer.h"

/* Most bytes of an encoder, and of the file that says how pictures are prepared. */
#define ENCODER_MAX ((size_t)4 << 30)
#define PREPROCESSOR_MAX (1u << 20)
#define TOKENIZER_CONFIG_MAX (4u << 20)
#define DEEP_MAX 16u

/* SigLIP. Names are those of archs.c, but of whole tensors, or without the end behind the last dot
 * (.weight, .bias), which stays; so below. */
static const struct arch_name names_gemma3[] = {
    {"vision_tower.vision_model.embeddings.patch_embedding", "v.patch_embd", NAME_PLAIN},
    {"vision_tower.vision_model.embeddings.position_embedding", "v.position_embd", NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.layer_norm1", "v.blk.#.ln1", NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.layer_norm2", "v.blk.#.ln2", NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.self_attn.q_proj", "v.blk.#.attn_q", NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.self_attn.k_proj", "v.blk.#.attn_k", NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.self_attn.v_proj", "v.blk.#.attn_v", NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.self_attn.out_proj", "v.blk.#.attn_out",
     NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.mlp.fc1", "v.blk.#.ffn_up", NAME_PLAIN},
    {"vision_tower.vision_model.encoder.layers.#.mlp.fc2", "v.blk.#.ffn_down", NAME_PLAIN},
    {"vision_tower.vision_model.post_layernorm", "v.post_ln", NAME_PLAIN},
    {"multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight", NAME_PLAIN},
    {"multi_modal_projector.mm_soft_emb_norm.weight", "mm.soft_emb_norm.weight", NAME_GAIN},
    {0},
};

/* '#' of a deepstack merger is its place in deepstack_visual_indexes. */
static const struct arch_name names_qwen[] = {
    {"visual.patch_embed.proj.weight", "v.patch_embd.weight", NAME_FRAMES},
    {"visual.patch_embed.proj.bias", "v.patch_embd.bias", NAME_PLAIN},
    {"visual.pos_embed", "v.position_embd", NAME_PLAIN},
    {"visual.blocks.#.norm1", "v.blk.#.ln1", NAME_PLAIN},
    {"visual.blocks.#.norm2", "v.blk.#.ln2", NAME_PLAIN},
    {"visual.blocks.#.attn.qkv", "v.blk.#.attn_qkv", NAME_PLAIN},
    {"visual.blocks.#.attn.proj", "v.blk.#.attn_out", NAME_PLAIN},
    {"visual.blocks.#.mlp.linear_fc1", "v.blk.#.ffn_up", NAME_PLAIN},
    {"visual.blocks.#.mlp.linear_fc2", "v.blk.#.ffn_down", NAME_PLAIN},
    {"visual.blocks.#.mlp.gate_proj", "v.blk.#.ffn_gate", NAME_PLAIN},
    {"visual.blocks.#.mlp.up_proj", "v.blk.#.ffn_up", NAME_PLAIN},
    {"visual.blocks.#.mlp.down_proj", "v.blk.#.ffn_down", NAME_PLAIN},
    {"visual.merger.norm", "v.post_ln", NAME_PLAIN},
    {"visual.merger.ln_q", "v.post_ln", NAME_PLAIN},
    {"visual.merger.linear_fc1", "mm.0", NAME_PLAIN},
    {"visual.merger.linear_fc2", "mm.2", NAME_PLAIN},
    {"visual.merger.mlp.0", "mm.0", NAME_PLAIN},
    {"visual.merger.mlp.2", "mm.2", NAME_PLAIN},
    {"visual.deepstack_merger_list.#.norm", "v.deepstack.#.norm", NAME_PLAIN},
    {"visual.deepstack_merger_list.#.linear_fc1", "v.deepstack.#.fc1", NAME_PLAIN},
    {"visual.deepstack_merger_list.#.linear_fc2", "v.deepstack.#.fc2", NAME_PLAIN},
    {0},
};

/* Products may have bounds beside their matrix, which is `linear` then. */
static const struct arch_name names_gemma4v[] = {
    {"vision_tower.patch_embedder.input_proj", "v.patch_embd", NAME_PIXELS},
    {"vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight", NAME_PLAIN},
    {"vision_tower.std_bias", "v.std_bias", NAME_PLAIN},
    {"vision_tower.std_scale", "v.std_scale", NAME_PLAIN},
    {"embed_vision.embedding_projection", "mm.input_projection", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.input_layernorm", "v.blk.#.ln1", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.post_attention_layernorm", "v.blk.#.attn_post_norm",
     NAME_PLAIN},
    {"vision_tower.encoder.layers.#.pre_feedforward_layernorm", "v.blk.#.ln2", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.post_feedforward_layernorm", "v.blk.#.ffn_post_norm",
     NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.q_norm", "v.blk.#.attn_q_norm", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.k_norm", "v.blk.#.attn_k_norm", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.q_proj.linear", "v.blk.#.attn_q", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.q_proj", "v.blk.#.attn_q", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.k_proj.linear", "v.blk.#.attn_k", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.k_proj", "v.blk.#.attn_k", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.v_proj.linear", "v.blk.#.attn_v", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.v_proj", "v.blk.#.attn_v", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.o_proj.linear", "v.blk.#.attn_out", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.self_attn.o_proj", "v.blk.#.attn_out", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.mlp.gate_proj.linear", "v.blk.#.ffn_gate", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.mlp.gate_proj", "v.blk.#.ffn_gate", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.mlp.up_proj.linear", "v.blk.#.ffn_up", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.mlp.up_proj", "v.blk.#.ffn_up", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.mlp.down_proj.linear", "v.blk.#.ffn_down", NAME_PLAIN},
    {"vision_tower.encoder.layers.#.mlp.down_proj", "v.blk.#.ffn_down", NAME_PLAIN},
    {0},
};

/* The rows of q and k are in the order of halves; GGUF has that of neighbours. */
static const struct arch_name names_pixtral[] = {
    {"vision_tower.patch_conv", "v.patch_embd", NAME_PLAIN},
    {"vision_tower.ln_pre", "v.pre_ln", NAME_PLAIN},
    {"vision_tower.transformer.layers.#.attention_norm", "v.blk.#.ln1", NAME_PLAIN},
    {"vision_tower.transformer.layers.#.ffn_norm", "v.blk.#.ln2", NAME_PLAIN},
    {"vision_tower.transformer.layers.#.attention.q_proj", "v.blk.#.attn_q", NAME_ROTATED},
    {"vision_tower.transformer.layers.#.attention.k_proj", "v.blk.#.attn_k", NAME_ROTATED},
    {"vision_tower.transformer.layers.#.attention.v_proj", "v.blk.#.attn_v", NAME_PLAIN},
    {"vision_tower.transformer.layers.#.attention.o_proj", "v.blk.#.attn_out", NAME_PLAIN},
    {"vision_tower.transformer.layers.#.feed_forward.gate_proj", "v.blk.#.ffn_gate", NAME_PLAIN},
    {"vision_tower.transformer.layers.#.feed_forward.up_proj", "v.blk.#.ffn_up", NAME_PLAIN},
    {"vision_tower.transformer.layers.#.feed_forward.down_proj", "v.blk.#.ffn_down", NAME_PLAIN},
    {"multi_modal_projector.norm", "mm.input_norm", NAME_PLAIN},
    {"multi_modal_projector.patch_merger.merging_layer", "mm.patch_merger", NAME_PLAIN},
    {"multi_modal_projector.linear_1", "mm.1", NAME_PLAIN},
    {"multi_modal_projector.linear_2", "mm.2", NAME_PLAIN},
    {0},
};

/* Preparation of pictures as a folder describes it; given = NULL: it does not. */
struct vision_prepared {
    /* name of the file that says it */
    const char *file;
    yyjson_val *given;
};

/* An encoder. Values that config.json may lack are those of transformers. */
struct vision_row {
    /* of the whole model */
    const char *model_type;
    /* clip.projector_type */
    const char *projector;
    const struct arch_name *names;
    /* mean and deviation of colours */
    const double (*colours)[3];
    double eps;
    int (*write)(struct reader *r);
    /* Writes the limits of a picture's size. NULL: all pictures get one size */
    int (*limit)(struct reader *r, const struct vision_prepared *p);
};

/* Says that the first of the keys @key is wrong in @from, which is vision_config or the whole
 * file. */
static int vision_bad_in(const struct reader *r, yyjson_val *from, const char *key) {
    return err_set(r->err, 0, NULL, "config.json: %s%.*s is missing or wrong",
                   from == r->text ? "vision_config." : "", (int)strcspn(key, " "), key);
}

static int vision_bad(const struct reader *r, const char *key) {
    return vision_bad_in(r, r->text, key);
}

/* Returns the number of the first of the @keys (blanks separate them) that @from has, or NAN.
 * Unlike reader_number() it looks nowhere else: numbers of the text model have the same names, and
 * lie beside vision_config in files that have no text_config. */
static double vision_number(yyjson_val *from, const char *keys) {
    for (size_t len; *keys; keys += len + strspn(keys + len, " ")) {
        len = strcspn(keys, " ");
        yyjson_val *v = yyjson_obj_getn(from, keys, len);

        if (v && !yyjson_is_null(v))
            return yyjson_is_num(v) ? yyjson_get_num(v) : NAN;
    }
    return NAN;
}

/* Reads a whole number of @from, from 1 to 2^20. */
static int vision_whole(const struct reader *r, yyjson_val *from, const char *keys, uint32_t *out) {
    double v = vision_number(from, keys);

    if (!(v >= 1 && v <= 1 << 20 && v == floor(v)))
        return vision_bad_in(r, from, keys);
    *out = (uint32_t)v;
    return 0;
}

static int vision_put(struct reader *r, const char *from, const char *to) {
    uint32_t v;

    TRY(vision_whole(r, r->text, from, &v));
    return gguf_keys_u32(&r->build.keys, to, v);
}

/* Gemma 3: a square of rows becomes one, so that mm_tokens_per_image are left. */
static int vision_gemma3(struct reader *r) {
    uint32_t side, patch, n;

    TRY(vision_whole(r, r->text, "image_size", &side));
    TRY(vision_whole(r, r->text, "patch_size", &patch));
    TRY(vision_whole(r, r->config, "mm_tokens_per_image", &n));
    uint32_t rows = (uint32_t)lround(sqrt(n));
    if (rows * rows != n || side % patch || side / patch % rows)
        return vision_bad_in(r, r->config, "mm_tokens_per_image");
    TRY(gguf_keys_u32(&r->build.keys, "clip.vision.projector.scale_factor", side / patch / rows));
    TRY(gguf_keys_u32(&r->build.keys, "clip.vision.image_size", side));
    return gguf_keys_bool(&r->build.keys, "clip.use_gelu", true);
}

static int vision_qwen3(struct reader *r) {
    return gguf_keys_bool(&r->build.keys, "clip.use_gelu", true);
}

/* Qwen2.5-VL: the layers of fullatt_block_indexes are every period-th, and others have windows. */
static int vision_qwen25(struct reader *r) {
    yyjson_val *full = yyjson_obj_get(r->text, "fullatt_block_indexes");
    uint64_t period = yyjson_get_uint(yyjson_arr_get_first(full)) + 1;

    JSON_EACH_AT(i, v, full) {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) > 1024 ||
            yyjson_get_uint(v) + 1 != (i + 1) * period)
            return vision_bad(r, "fullatt_block_indexes");
    }
    if (yyjson_arr_size(full) == 0)
        return vision_bad(r, "fullatt_block_indexes");
    TRY(gguf_keys_u32(&r->build.keys, "clip.vision.n_wa_pattern", (uint32_t)period));
    TRY(vision_put(r, "window_size", "clip.vision.window_size"));
    return gguf_keys_bool(&r->build.keys, "clip.use_silu", true);
}

/* Finds the token [IMG_BREAK] in tokenizer_config.json, which is small. Returns 1, 0 or -errno. */
static int vision_break_decoder(struct reader *r, uint64_t *out) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    int found = 0;

    TRY(reader_json(r, "tokenizer_config.json", TOKENIZER_CONFIG_MAX, &doc));
    JSON_MEMBERS(key, v, yyjson_obj_get(yyjson_doc_get_root(doc), "added_tokens_decoder")) {
        const char *id = json_cstr(key);
        char *end = NULL;

        if (!id || !json_is(yyjson_obj_get(v, "content"), "[IMG_BREAK]"))
            continue;
        *out = strtoull(id, &end, 10);
        found = end != id && !*end;
    }
    return found;
}

/* Finds the token [IMG_BREAK]. tokenizer.json, which takes long to parse, is read only if the small
 * file does not name the token. Returns 0 or -errno. */
static int vision_break_token(struct reader *r, uint64_t *out) {
    static const char name[] = "tokenizer.json";
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    int found = vision_break_decoder(r, out);

    if (found)
        return MIN(found, 0);
    TRY(reader_json(r, name, HF_TOKENIZER_FILE_MAX, &doc));
    if (!doc)
        return err_set(r->err, 0, NULL, "%s is missing", name);
    JSON_EACH(v, yyjson_obj_get(yyjson_doc_get_root(doc), "added_tokens")) {
        if (!json_is(yyjson_obj_get(v, "content"), "[IMG_BREAK]"))
            continue;
        *out = yyjson_get_uint(yyjson_obj_get(v, "id"));
        return 0;
    }
    return err_set(r->err, 0, NULL, "%s: added_tokens has no [IMG_BREAK]", name);
}

/* Adds the row of the text model's table for [IMG_BREAK], which stands between lines of rows. */
static int vision_break(struct reader *r) {
    static const char *const tables[] = {"language_model.model.embed_tokens.weight",
                                         "model.language_model.embed_tokens.weight"};
    struct gguf_built b = {.type = TENSOR_F32, .name = "v.token_embd.img_break", .n_dims = 1};
    const struct st_tensor *t = NULL;
    uint64_t id = 0;

    for (size_t i = 0; i < ARRAY_SIZE(tables) && !t; i++)
        t = st_find(&r->list, tables[i]);
    TRY(vision_break_token(r, &id));
    if (!t || t->n_dims != 2 || id >= t->dim[0])
        return err_set(r->err, 0, NULL, "the table of tokens has no row of [IMG_BREAK]");
    struct st_tensor row = *t;
    row.n_dims = 1;
    row.dim[0] = t->dim[1];
    row.n_bytes = t->n_bytes / t->dim[0];
    row.offset = t->offset + id * row.n_bytes;
    return reader_copy(r, &row, NAME_PLAIN, &b);
}

static int vision_pixtral(struct reader *r) {
    uint32_t n;

    TRY(vision_whole(r, r->config, "spatial_merge_size", &n));
    TRY(gguf_keys_u32(&r->build.keys, "clip.vision.spatial_merge_size", n));
    TRY(vision_break(r));
    return gguf_keys_bool(&r->build.keys, "clip.use_silu", true);
}

/* Gemma 4: the engine's heads divide a row evenly. */
static int vision_gemma4(struct reader *r) {
    yyjson_val *act = yyjson_obj_get(r->text, "hidden_activation");
    double dim = vision_number(r->text, "head_dim");
    double heads = vision_number(r->text, "num_attention_heads");

    if (!isnan(dim) && dim * heads != vision_number(r->text, "hidden_size"))
        return vision_bad(r, "head_dim");
    TRY(vision_put(r, "pooling_kernel_size", "clip.vision.projector.scale_factor"));
    if (json_is(act, "quick_gelu"))
        return 0;
    if (!json_is(act, "gelu_pytorch_tanh"))
        return vision_bad(r, "hidden_activation");
    return gguf_keys_bool(&r->build.keys, "clip.use_gelu", true);
}

/* Says that @key is wrong in the preprocessor's file. */
static int vision_unfit(const struct reader *r, const struct vision_prepared *p, const char *key) {
    return err_set(r->err, 0, NULL, "%s: %s is wrong", p->file, key);
}

/* Checks that a side of patches, a number or a height and a width, is that of vision_config. */
static int vision_check_patch(const struct reader *r, const struct vision_prepared *p) {
    yyjson_val *patch = json_given(p->given, "patch_size");
    static const char *const sides[] = {"height", "width"};
    double own = vision_number(r->text, "patch_size");

    if (yyjson_is_num(patch) && yyjson_get_num(patch) != own)
        return vision_unfit(r, p, "patch_size");
    for (size_t i = 0; i < ARRAY_SIZE(sides); i++) {
        yyjson_val *v = json_given(patch, sides[i]);

        if (v && (!yyjson_is_num(v) || yyjson_get_num(v) != own))
            return vision_unfit(r, p, "patch_size");
    }
    return 0;
}

/* Reads the limit @key, if the file has it in @from, from 1 to @most. */
static int vision_read_limit(const struct reader *r, const struct vision_prepared *p,
                             yyjson_val *from, const char *key, uint32_t most, uint32_t *out) {
    yyjson_val *v = json_given(from, key);

    if (!v)
        return 0;
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) == 0 || yyjson_get_uint(v) > most)
        return vision_unfit(r, p, key);
    *out = (uint32_t)yyjson_get_uint(v);
    return 0;
}

/* Writes a limit of pixels, if the file has it as @key, or as @key or @edge of its member size,
 * where the number is one of pixels, too. */
static int vision_pixels_of(struct reader *r, const struct vision_prepared *p, const char *key,
                            const char *edge, const char *to) {
    yyjson_val *size = yyjson_obj_get(p->given, "size");
    uint32_t n = 0;

    TRY(vision_read_limit(r, p, p->given, key, INT32_MAX, &n));
    if (!n)
        TRY(vision_read_limit(r, p, size, key, INT32_MAX, &n));
    if (!n)
        TRY(vision_read_limit(r, p, size, edge, INT32_MAX, &n));
    return n ? gguf_keys_u32(&r->build.keys, to, n) : 0;
}

static int vision_limit_qwen(struct reader *r, const struct vision_prepared *p) {
    TRY(vision_pixels_of(r, p, "min_pixels", "shortest_edge", "clip.vision.image_min_pixels"));
    return vision_pixels_of(r, p, "max_pixels", "longest_edge", "clip.vision.image_max_pixels");
}

/* Pixtral: the longest edge, of which the limit is the square. */
static int vision_limit_pixtral(struct reader *r, const struct vision_prepared *p) {
    uint32_t edge = 0;

    TRY(vision_read_limit(r, p, yyjson_obj_get(p->given, "size"), "longest_edge", 1 << 15, &edge));
    return edge ? gguf_keys_u32(&r->build.keys, "clip.vision.image_max_pixels", edge * edge) : 0;
}

/* Gemma 4: the most rows, each of a square of patches. */
static int vision_limit_gemma4(struct reader *r, const struct vision_prepared *p) {
    uint32_t n = 0, patch, pool, given = 0;

    TRY(vision_whole(r, r->text, "patch_size", &patch));
    TRY(vision_whole(r, r->text, "pooling_kernel_size", &pool));
    TRY(vision_read_limit(r, p, p->given, "pooling_kernel_size", 1 << 10, &given));
    if (given && given != pool)
        return vision_unfit(r, p, "pooling_kernel_size");
    TRY(vision_read_limit(r, p, p->given, "max_soft_tokens", 1 << 16, &n));
    double pixels = (double)n * patch * pool * patch * pool;
    if (pixels > INT32_MAX)
        return vision_unfit(r, p, "max_soft_tokens");
    return n ? gguf_keys_u32(&r->build.keys, "clip.vision.image_max_pixels", (uint32_t)pixels) : 0;
}

/* Means and deviations of colours. */
static const double halves[2][3] = {{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}};
static const double unchanged[2][3] = {{0, 0, 0}, {1, 1, 1}};
static const double clip[2][3] = {{0.48145466, 0.4578275, 0.40821073},
                                  {0.26862954, 0.26130258, 0.27577711}};

static const struct vision_row vision_rows[] = {
    {"gemma3", "gemma3", names_gemma3, halves, 1e-6, vision_gemma3, NULL},
    {"qwen3_vl", "qwen3vl_merger", names_qwen, halves, 1e-6, vision_qwen3, vision_limit_qwen},
    {"qwen3_5", "qwen3vl_merger", names_qwen, halves, 1e-6, vision_qwen3, vision_limit_qwen},
    {"qwen3_5_moe", "qwen3vl_merger", names_qwen, halves, 1e-6, vision_qwen3, vision_limit_qwen},
    {"qwen2_5_vl", "qwen2.5vl_merger", names_qwen, clip, 1e-6, vision_qwen25, vision_limit_qwen},
    {"gemma4", "gemma4v", names_gemma4v, unchanged, 1e-6, vision_gemma4, vision_limit_gemma4},
    {"mistral3", "pixtral", names_pixtral, clip, 1e-5, vision_pixtral, vision_limit_pixtral},
};

static const struct vision_row *vision_find(yyjson_val *config) {
    const char *type = json_cstr(yyjson_obj_get(config, "model_type"));

    for (size_t i = 0; type && i < ARRAY_SIZE(vision_rows); i++)
        if (strcmp(vision_rows[i].model_type, type) == 0)
            return &vision_rows[i];
    return NULL;
}

/* Writes the three numbers @key, those of the preprocessor's file if it has them. */
static int vision_colours(struct reader *r, yyjson_val *given, const double usual[3],
                          const char *key) {
    TRY(gguf_keys_array(&r->build.keys, key, GGUF_F32, 3));
    for (size_t i = 0; i < 3; i++) {
        yyjson_val *v = yyjson_arr_get(given, i);
        double number = yyjson_is_num(v) ? yyjson_get_num(v) : usual[i];

        TRY(gguf_keys_add_f32(&r->build.keys, (float)number));
    }
    return 0;
}

/* Reads preprocessor_config.json, or what newer folders have in its place, for the colours and the
 * limits of a picture's size. */
static int vision_preprocessor(struct reader *r, const struct vision_row *row) {
    static const struct {
        const char *file, *member;
    } places[] = {{"preprocessor_config.json", NULL}, {"processor_config.json", "image_processor"}};
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    struct vision_prepared p = {0};

    for (size_t i = 0; i < ARRAY_SIZE(places) && !p.given; i++) {
        yyjson_doc_free(doc);
        doc = NULL;
        p.file = places[i].file;
        TRY(reader_json(r, p.file, PREPROCESSOR_MAX, &doc));
        p.given = yyjson_doc_get_root(doc);
        if (places[i].member)
            p.given = json_given(p.given, places[i].member);
    }
    TRY(vision_check_patch(r, &p));
    if (row->limit)
        TRY(row->limit(r, &p));
    yyjson_val *colours = p.given;
    if (yyjson_is_false(yyjson_obj_get(p.given, "do_normalize")))
        colours = NULL;
    TRY(vision_colours(r, yyjson_obj_get(colours, "image_mean"), row->colours[0],
                       "clip.vision.image_mean"));
    return vision_colours(r, yyjson_obj_get(colours, "image_std"), row->colours[1],
                          "clip.vision.image_std");
}

static int vision_text(struct reader *r, const char *key, const char *text) {
    return gguf_keys_string(&r->build.keys, key, (struct gguf_str){text, strlen(text)});
}

/* The keys of vision_config that may have the number of layers. */
#define VISION_LAYERS "num_hidden_layers depth"

/* Writes the keys. r->text is vision_config here; @n_out: width of the text model. */
static int vision_keys(struct reader *r, const struct vision_row *row, uint32_t n_out) {
    static const struct {
        const char *from, *to;
    } map[] = {
        {"hidden_size", "clip.vision.embedding_length"},
        {"intermediate_size", "clip.vision.feed_forward_length"},
        {VISION_LAYERS, "clip.vision.block_count"},
        {"num_attention_heads num_heads", "clip.vision.attention.head_count"},
        {"patch_size", "clip.vision.patch_size"},
    };
    yyjson_val *given = json_given(r->text, "layer_norm_eps");

    TRY(vision_text(r, "general.architecture", "clip"));
    TRY(vision_text(r, "general.type", "mmproj"));
    TRY(vision_text(r, "clip.projector_type", row->projector));
    TRY(gguf_keys_bool(&r->build.keys, "clip.has_vision_encoder", true));
    TRY(gguf_keys_u32(&r->build.keys, "clip.vision.projection_dim", n_out));
    for (size_t i = 0; i < ARRAY_SIZE(map); i++)
        TRY(vision_put(r, map[i].from, map[i].to));
    if (!given)
        given = json_given(r->text, "rms_norm_eps");
    double eps = yyjson_is_num(given) ? yyjson_get_num(given) : row->eps;
    TRY(gguf_keys_f32(&r->build.keys, "clip.vision.attention.layer_norm_epsilon", (float)eps));
    TRY(vision_preprocessor(r, row));
    return row->write(r);
}

/* A tensor's row of names, the end of its name, and the number in it. */
struct vision_place {
    const struct arch_name *name;
    const char *end;
    uint32_t number;
};

/* Finds the row of tensor @name, whole or without its end. Returns false if there is none. */
static bool vision_place(const struct vision_row *row, const char *name, struct vision_place *out) {
    char stem[ST_NAME_MAX + 1];
    const char *dot = strrchr(name, '.');

    snprintf(stem, sizeof(stem), "%.*s", dot ? (int)(dot - name) : 0, name);
    for (const struct arch_name *n = row->names; n->from; n++) {
        bool whole = reader_match(n->from, name, &out->number);

        if (!whole && !reader_match(n->from, stem, &out->number))
            continue;
        out->name = n;
        out->end = whole ? "" : dot;
        return true;
    }
    return false;
}

/* Refuses the tensor @t if it is of a layer that vision_config leaves out. Readers of projectors
 * would refuse it, too, but do not know the key. */
static int vision_check_layer(const struct reader *r, const struct st_tensor *t,
                              const struct vision_place *p) {
    double n_layer = vision_number(r->text, VISION_LAYERS);
    const char *key = "num_hidden_layers";

    if (strncmp(p->name->to, "v.blk.", 6) != 0 || p->number < n_layer)
        return 0;
    if (isnan(vision_number(r->text, key)))
        key = "depth";
    return err_set(r->err, 0, NULL, "config.json: vision_config.%s is %.0f, but %s has tensor '%s'",
                   key, n_layer, r->file[t->file].name, t->name);
}

/* Sets the name of GGUF. The number of a deepstack merger becomes that of its layer. */
static int vision_name(const struct reader *r, const struct vision_place *p, char out[64]) {
    yyjson_val *deep = yyjson_obj_get(r->text, "deepstack_visual_indexes");
    const char *to = p->name->to, *at = strchr(to, '#');
    uint32_t number = p->number;

    if (strncmp(to, "v.deepstack.", 12) == 0) {
        yyjson_val *v = yyjson_arr_get(deep, number);

        if (!yyjson_is_uint(v) || yyjson_get_uint(v) >= 1024)
            return vision_bad(r, "deepstack_visual_indexes");
        number = (uint32_t)yyjson_get_uint(v);
    }
    if (at)
        snprintf(out, 64, "%.*s%u%s%s", (int)(at - to), to, number, at + 1, p->end);
    else
        snprintf(out, 64, "%s%s", to, p->end);
    return 0;
}

/* Adds the kernels of two frames, [rows][colours][2][side][side], as two tensors. */
static int vision_frames(struct reader *r, const struct st_tensor *t, struct gguf_built *b) {
    size_t n_planes, plane;
    CLEANUP(freep) uint8_t *bytes = NULL;
    uint8_t *to;

    if (t->n_dims != 5 || t->dim[1] != 3 || t->dim[2] != 2 || t->n_bytes == 0)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has a shape that is not supported",
                       r->file[t->file].name, t->name);
    n_planes = t->dim[0] * t->dim[1];
    plane = t->n_bytes / n_planes / 2;
    b->n_dims = 4;
    b->ne[0] = t->dim[4];
    b->ne[1] = t->dim[3];
    b->ne[2] = t->dim[1];
    b->ne[3] = t->dim[0];
    TRY(reader_bytes(r, t, &bytes));
    for (size_t frame = 0; frame < 2; frame++) {
        snprintf(b->name, sizeof(b->name), "v.patch_embd.weight%s", frame ? ".1" : "");
        TRY(gguf_build_tensor(&r->build, b, n_planes * plane, &to));
        for (size_t i = 0; i < n_planes; i++)
            memcpy(to + i * plane, bytes + (2 * i + frame) * plane, plane);
    }
    return 0;
}

/* Adds kernels [rows][side][side][colours] as [rows][colours][side][side]. */
static int vision_pixels(struct reader *r, const struct st_tensor *t, struct gguf_built *b) {
    size_t size = st_type_bytes(t->type);
    CLEANUP(freep) uint8_t *bytes = NULL;
    uint32_t side;
    uint8_t *to;

    TRY(vision_whole(r, r->text, "patch_size", &side));
    size_t n = (size_t)side * side;
    if (side > 256 || t->n_dims != 2 || t->dim[1] != 3 * n || t->n_bytes == 0)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has a shape that is not supported",
                       r->file[t->file].name, t->name);
    b->n_dims = 4;
    b->ne[0] = b->ne[1] = side;
    b->ne[2] = 3;
    b->ne[3] = t->dim[0];
    TRY(reader_bytes(r, t, &bytes));
    TRY(gguf_build_tensor(&r->build, b, t->n_bytes, &to));
    for (size_t row = 0; row < t->dim[0]; row++)
        for (size_t i = 0; i < 3 * n; i++) {
            size_t from = i % n * 3 + i / n;

            memcpy(to + (row * 3 * n + i) * size, bytes + (row * 3 * n + from) * size, size);
        }
    return 0;
}

/* Adds the rows of q or k, those of each head in the order of neighbours: row 2 i + k is row
 * k * half + i of the file. */
static int vision_rotated(struct reader *r, const struct st_tensor *t, struct gguf_built *b) {
    CLEANUP(freep) uint8_t *bytes = NULL;
    uint32_t width, heads;
    uint8_t *to;

    TRY(vision_whole(r, r->text, "hidden_size", &width));
    TRY(vision_whole(r, r->text, "num_attention_heads", &heads));
    size_t dim = width / heads;
    if (t->n_dims != 2 || t->dim[0] != width || width % heads || dim % 2 || t->n_bytes == 0)
        return err_set(r->err, 0, NULL, "%s: tensor '%s' has no whole heads of %zu rows",
                       r->file[t->file].name, t->name, dim);
    b->n_dims = 2;
    b->ne[0] = t->dim[1];
    b->ne[1] = t->dim[0];
    b->ne[2] = b->ne[3] = 1;
    TRY(reader_bytes(r, t, &bytes));
    TRY(gguf_build_tensor(&r->build, b, t->n_bytes, &to));
    size_t row = t->n_bytes / width;
    for (size_t i = 0; i < width; i++) {
        size_t head = i - i % dim, from = head + i % 2 * (dim / 2) + i % dim / 2;

        memcpy(to + i * row, bytes + from * row, row);
    }
    return 0;
}

/* Adds the quantised matrix @q, whose codes are @t, as a copy in 16 bits. */
static int vision_quantised(struct reader *r, const struct st_tensor *t, enum name_how how,
                            const struct quantised *q, struct gguf_built *b) {
    CLEANUP(quantised_free_parts) struct quantised_parts parts = {0};
    CLEANUP(freep) float *value = NULL;
    uint64_t bytes;
    uint8_t *to;

    if (how != NAME_PLAIN || q->n_stack || q->n_in > SIZE_MAX / sizeof(*value))
        return err_set(r->err, 0, NULL,
                       "%s: tensor '%s' has type %s, which is not supported there; a projector "
                       "file in GGUF is needed",
                       r->file[t->file].name, t->name, st_type_name(t->type));
    if (size_mul(2 * q->n_rows, q->n_in, &bytes))
        return -EMSGSIZE;
    b->type = quantised_halves(q);
    b->n_dims = 2;
    b->ne[0] = q->n_in;
    b->ne[1] = q->n_rows;
    b->ne[2] = b->ne[3] = 1;
    TRY(quantised_read_parts(r, q, &parts));
    value = malloc(q->n_in * sizeof(*value));
    if (!value)
        return -ENOMEM;
    TRY(gguf_build_tensor(&r->build, b, bytes, &to));
    for (uint64_t i = 0; i < q->n_rows; i++, to += 2 * q->n_in) {
        repack_values(&parts.t, i, value);
        quantised_store_halves(q, value, to);
    }
    return 0;
}

/* Adds the matrix @t in place. The files that are used get numbers in the order in which they are
 * met. */
static int vision_in_place(struct reader *r, const struct st_tensor *t, struct gguf_built *b) {
    struct gguf_piece piece = {r->n_used, t->offset};

    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->used[i] == t->file)
            piece.file = i;
    if (piece.file == r->n_used)
        r->used[r->n_used++] = t->file;
    b->n_dims = 2;
    b->ne[0] = t->dim[1];
    b->ne[1] = b->piece_rows = t->dim[0];
    b->ne[2] = b->ne[3] = 1;
    return gguf_build_scattered(&r->build, b, &piece, 1);
}

/* Adds tensor @t, unless it is not the encoder's. */
static int vision_add(struct reader *r, const struct vision_row *row, const struct st_tensor *t) {
    const char *name = t->name;
    struct vision_place p = {0};
    struct gguf_built b = {0};
    struct quantised q;

    if (strncmp(name, "model.", 6) == 0)
        name += 6;
    bool own = strncmp(name, "vision", 6) == 0 || strncmp(name, "embed_vision.", 13) == 0 ||
               strncmp(name, "visual.", 7) == 0 || strncmp(name, "multi_modal_projector.", 22) == 0;
    if (!own)
        return 0;
    int form = quantised_find(r, t, &q);
    if (form < 0 || form == QUANTISED_COMPANION)
        return MIN(form, 0);
    if (form == QUANTISED_MATRIX)
        name = q.name + (strncmp(q.name, "model.", 6) == 0 ? 6 : 0);
    if (!vision_place(row, name, &p))
        return err_set(r->err, 0, NULL, "%s: tensor '%s' is unknown for the encoder of %s models",
                       r->file[t->file].name, t->name, row->model_type);
    TRY(vision_check_layer(r, t, &p));
    TRY(vision_name(r, &p, b.name));
    if (form == QUANTISED_MATRIX)
        return vision_quantised(r, t, p.name->how, &q, &b);
    TRY(reader_type(r, t, &b.type));
    if (p.name->how == NAME_FRAMES)
        return vision_frames(r, t, &b);
    if (p.name->how == NAME_PIXELS)
        return vision_pixels(r, t, &b);
    if (p.name->how == NAME_ROTATED)
        return vision_rotated(r, t, &b);
    if (p.name->how == NAME_PLAIN && t->n_dims == 2 && t->n_bytes > 0)
        return vision_in_place(r, t, &b);
    return reader_copy(r, t, p.name->how, &b);
}

/* Opens the header and the files that it uses as a projector. */
static int vision_join(struct reader *r, struct gguf **out) {
    CLEANUP(files_closep) int head = gguf_build_finish(&r->build);
    int fds[READER_FILES_MAX + 1] = {head};

    TRY(head);
    for (uint32_t i = 0; i < r->n_used; i++)
        fds[i + 1] = r->file[r->used[i]].fd;
    return gguf_open_fds(out, fds, r->n_used + 1, r->err);
}

/* Reads the encoder of the folder r->dir. Returns 0 or -errno. */
static int vision_read(struct reader *r, struct gguf **out) {
    CLEANUP(buf_deinit) struct buf text = {0};

    TRY(reader_read_config(r, &text));
    const struct vision_row *row = vision_find(r->config);
    yyjson_val *vision = yyjson_obj_get(r->config, "vision_config");
    if (!yyjson_is_obj(vision))
        return err_set(r->err, 0, NULL, "config.json: vision_config is missing");
    if (!row)
        return err_set(r->err, 0, NULL,
                       "config.json: the image encoder of a folder of this model_type is not "
                       "supported; a projector file in GGUF is needed");
    uint32_t n_out = (uint32_t)reader_number(r, "hidden_size"); /* reader_open_config() checks it */
    r->text = vision;
    TRY(reader_open_files(r));
    TRY(vision_keys(r, row, n_out));
    for (uint32_t i = 0; i < r->list.n; i++)
        TRY(vision_add(r, row, &r->list.tensor[i]));
    return vision_join(r, out);
}

int checkpoint_open_projector(struct gguf **out, const char *path, struct err *err) {
    struct err own = {0};
    CLEANUP(reader_close) struct reader r = {.dir = -1};

    if (!files_is_folder(path))
        return gguf_open(out, path, err);
    TRY(reader_open(&r, path, ENCODER_MAX, err ? err : &own));
    int result = vision_read(&r, out);
    if (result == -EMSGSIZE)
        return err_set(r.err, 0, NULL, "the image encoder has more than %zu GiB",
                       ENCODER_MAX >> 30);
    return result;
}

bool checkpoint_has_projector(const char *dir) {
    CLEANUP(reader_close) struct reader r = {.dir = -1};
    CLEANUP(buf_deinit) struct buf text = {0};
    struct err err = {0};

    if (!files_is_folder(dir) || reader_open(&r, dir, 0, &err) < 0)
        return false;
    if (reader_read_config(&r, &text) < 0 || !vision_find(r.config))
        return false;
    return yyjson_is_obj(yyjson_obj_get(r.config, "vision_config"));
}
