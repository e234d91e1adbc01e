/* config - config.json: which architecture it is, and its hyperparameters as keys of GGUF. */

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/printable.h"
#include "base/try.h"
#include "checkpoint/quantised.h"
#include "checkpoint/reader.h"

/* Most members of config.json, which are compared with each other. */
#define MEMBERS_MAX 1024u

/* Returns member @key (of @len bytes) of the text model, or of the whole; NULL: none, or null. */
static yyjson_val *config_member(const struct reader *r, const char *key, size_t len) {
    yyjson_val *v = yyjson_obj_getn(r->text, key, len);

    if (!v || yyjson_is_null(v))
        v = yyjson_obj_getn(r->config, key, len);
    return yyjson_is_null(v) ? NULL : v;
}

static double config_default(const struct reader *r, const char *key, size_t len) {
    for (const struct arch_default *d = r->row->defaults; d && d->key; d++)
        if (strlen(d->key) == len && memcmp(d->key, key, len) == 0)
            return d->value;
    return NAN;
}

/* Returns the first of the members @keys. */
static yyjson_val *config_first(const struct reader *r, const char *keys) {
    yyjson_val *v = NULL;

    for (size_t len; !v && *keys; keys += len + strspn(keys + len, " ")) {
        len = strcspn(keys, " ");
        v = config_member(r, keys, len);
    }
    return v;
}

double reader_number(const struct reader *r, const char *keys) {
    yyjson_val *v = config_first(r, keys);

    if (v)
        return yyjson_is_num(v) && isfinite(yyjson_get_num(v)) ? yyjson_get_num(v) : NAN;
    double d = NAN;
    for (size_t len; isnan(d) && *keys; keys += len + strspn(keys + len, " ")) {
        len = strcspn(keys, " ");
        d = config_default(r, keys, len);
    }
    return d;
}

static int config_bad(const struct reader *r, const char *keys) {
    return err_set(r->err, 0, NULL, "config.json: %.*s is missing or has a wrong value",
                   (int)strcspn(keys, " "), keys);
}

/* Reads a whole number from @lo to @hi; @def if there is none, unless @def is 0. */
static int config_whole(const struct reader *r, const char *keys, uint32_t def, uint32_t lo,
                        uint32_t hi, uint32_t *out) {
    double v = reader_number(r, keys);

    if (isnan(v) && def && !config_first(r, keys)) {
        *out = def;
        return 0;
    }
    if (!(v >= lo && v <= hi && v == floor(v)))
        return config_bad(r, keys);
    *out = (uint32_t)v;
    return 0;
}

/* A key with its architecture. */
struct config_key {
    char s[96];
};

static struct config_key config_name(const struct reader *r, const char *key) {
    struct config_key k;

    snprintf(k.s, sizeof(k.s), "%s.%s", r->row->arch, key);
    return k;
}

static int config_add_u32(struct reader *r, const char *key, uint32_t v) {
    return gguf_keys_u32(&r->build.keys, config_name(r, key).s, v);
}

static int config_add_f32(struct reader *r, const char *key, double v) {
    return gguf_keys_f32(&r->build.keys, config_name(r, key).s, (float)v);
}

static int config_add_text(struct reader *r, const char *key, const char *text) {
    return gguf_keys_string(&r->build.keys, key, (struct gguf_str){text, strlen(text)});
}

/* Returns true if the engine's layers have the window of config.json. */
static bool config_has_window(const struct reader *r) {
    for (const struct arch_key *k = r->row->keys; k && k->from; k++)
        if (strcmp(k->from, "sliding_window") == 0)
            return true;
    return false;
}

/* Writes the length of the context. Architectures without windows end where a window of config.json
 * would begin to hide tokens: up to there both compute the same. */
static int config_context(struct reader *r) {
    yyjson_val *used = config_first(r, "use_sliding_window");
    double window = reader_number(r, "sliding_window");
    uint32_t n;

    TRY(config_whole(r, "max_position_embeddings max_trained_positions n_positions", 0,
                     1 + r->n_padded, UINT32_MAX, &n));
    n -= r->n_padded;
    if (window >= 1 && window < n && !yyjson_is_false(used) && !config_has_window(r))
        n = (uint32_t)window;
    return config_add_u32(r, "context_length", n);
}

/* Converts the keys of a list. */
static int config_convert(struct reader *r, const struct arch_key *list) {
    for (const struct arch_key *k = list; k && k->from; k++) {
        yyjson_val *v = config_first(r, k->from);
        double number = reader_number(r, k->from);
        uint32_t whole;

        if (!v && isnan(number) && !k->must)
            continue;
        switch (k->kind) {
        case KEY_U32:
            TRY(config_whole(r, k->from, 0, 0, UINT32_MAX, &whole));
            TRY(config_add_u32(r, k->to, whole));
            break;
        case KEY_F32:
            if (!isfinite(number))
                return config_bad(r, k->from);
            TRY(config_add_f32(r, k->to, number));
            break;
        case KEY_BOOL:
            if (!yyjson_is_bool(v))
                return config_bad(r, k->from);
            TRY(gguf_keys_bool(&r->build.keys, config_name(r, k->to).s, yyjson_get_bool(v)));
            break;
        }
    }
    return 0;
}

/* Returns the part of config.json whose members count before those beside it: that of the text
 * model, which some repositories wrap for pictures, or of a block drafter. */
static yyjson_val *config_text(yyjson_val *root) {
    yyjson_val *text = yyjson_obj_get(root, "text_config");
    yyjson_val *drafter = yyjson_obj_get(root, "dflash_config");

    if (yyjson_is_obj(text))
        return text;
    return yyjson_is_obj(drafter) ? drafter : root;
}

/* Reads the sizes of heads, of @n_embd / n_head values if no key says it. */
static int config_head_dims(struct reader *r, uint32_t n_embd) {
    const char *key = r->row->two_heads ? "global_head_dim" : "head_dim";
    uint32_t usual = r->row->two_heads ? 0 : MAX(n_embd / r->n_head, 1u);

    if (r->row->latent) { /* the part of a head that RoPE rotates */
        TRY(config_whole(r, "qk_rope_head_dim", 0, 2, 1 << 12, &r->head_dim));
        r->full_dim = r->head_dim;
        return 0;
    }
    TRY(config_whole(r, "head_dim", usual, 2, 1 << 12, &r->head_dim));
    return config_whole(r, key, r->head_dim, 2, 1 << 12, &r->full_dim);
}

/* Counts the rows of the table of positions that no token has: those up to the padding's. */
static int config_padded(struct reader *r) {
    uint32_t padding;

    if (!r->row->padded_positions)
        return 0;
    TRY(config_whole(r, "pad_token_id", 1, 0, 1 << 10, &padding));
    r->n_padded = padding + 1;
    return 0;
}

/* Refuses members that appear twice, of which Python's programs take the last one. */
static int config_check_twice(const struct reader *r, yyjson_val *object) {
    if (yyjson_obj_size(object) > MEMBERS_MAX)
        return err_set(r->err, 0, NULL, "config.json: more than %u members", MEMBERS_MAX);
    JSON_MEMBERS(key, value, object) {
        const char *name = json_cstr(key);

        if (name && yyjson_obj_get(object, name) != value)
            return err_set(r->err, 0, NULL, "config.json: %s appears twice", quoted(name).s);
    }
    return 0;
}

/* Finds the row of the architecture. */
static int config_find_row(struct reader *r) {
    const char *part = json_cstr(yyjson_obj_get(r->config, "_class_name"));
    const char *type = json_cstr(config_first(r, "model_type"));
    const char *architecture =
        json_cstr(yyjson_arr_get(yyjson_obj_get(r->config, "architectures"), 0));
    bool two_way = yyjson_get_bool(config_first(r, "use_bidirectional_attention"));
    char known[700];

    if (!type && part)
        return err_set(r->err, 0, NULL,
                       "config.json: _class_name %s is a part of a diffusion model, which weft "
                       "does not serve",
                       quoted(part).s);
    if (!type)
        return err_set(r->err, 0, NULL, "config.json: model_type is missing");
    r->row = arch_find(type, architecture, config_first(r, "n_routed_experts") != NULL, two_way);
    arch_list(known, sizeof(known));
    if (!r->row)
        return err_set(r->err, 0, NULL,
                       "config.json: model_type %s is not supported as a folder; known: %s",
                       quoted(type).s, known);
    if (two_way && !r->row->encoder)
        return err_set(r->err, 0, NULL,
                       "config.json: use_bidirectional_attention is not supported for %s models",
                       type);
    if (yyjson_obj_get(r->config, "dflash_config") && !r->row->drafter)
        return err_set(r->err, 0, NULL,
                       "config.json: architectures: the block drafter %s of model_type %s is not "
                       "supported as a folder",
                       quoted(architecture ? architecture : "").s, type);
    return 0;
}

int reader_open_config(struct reader *r, const char *text, size_t len) {
    /* time_step_limit of Mamba-2 mostly ends in Infinity */
    int result = json_parse(&r->doc, text, len, YYJSON_READ_ALLOW_INF_AND_NAN);

    if (result == -EINVAL)
        return err_set(r->err, 0, NULL, "config.json: not JSON (%s)",
                       json_why(text, len, YYJSON_READ_ALLOW_INF_AND_NAN).s);
    TRY(result);
    r->config = yyjson_doc_get_root(r->doc);
    r->text = config_text(r->config);
    TRY(config_check_twice(r, r->config));
    TRY(config_check_twice(r, r->text));
    TRY(config_find_row(r));
    TRY(quantised_read_rule(r));
    TRY(config_whole(r, "num_hidden_layers n_layer", 0, 1, 1024, &r->n_layer));
    TRY(config_whole(r, "num_attention_heads n_head", 0, 1, 1 << 12, &r->n_head));
    TRY(config_whole(r, "num_key_value_heads", r->n_head, 1, 1 << 12, &r->n_head_kv));
    TRY(config_whole(r, "vocab_size", 0, 1, 1 << 24, &r->n_vocab));
    uint32_t n_embd;
    TRY(config_whole(r, "hidden_size n_embd", 0, 1, 1 << 18, &n_embd));
    TRY(config_padded(r));
    return config_head_dims(r, n_embd);
}

/* Returns true if layer @l of layer_types is one of @words. */
static bool config_layer_is(yyjson_val *types, uint32_t l, const char *words) {
    return json_is(yyjson_arr_get(types, l), words);
}

/* Returns true if layer @l has attention: by layer_types, or in older files of LFM2 by a list. */
static bool config_layer_attends(const struct reader *r, uint32_t l) {
    yyjson_val *types = config_first(r, "layer_types");
    bool found = false;

    if (types)
        return config_layer_is(types, l, "full_attention");
    JSON_EACH(v, config_first(r, "full_attn_idxs")) {
        found |= yyjson_is_uint(v) && yyjson_get_uint(v) == l;
    }
    return found;
}

/* Writes which layers have a window, where config.json says it by layer, or of which number every
 * layer has none. Of the models here only block drafters, which are Qwen's, read
 * use_sliding_window; of Gemma and gpt-oss transformers ignores it. */
static int config_windows(struct reader *r) {
    yyjson_val *types = config_first(r, "layer_types");
    uint32_t every = 0;

    if (!r->row->window_pattern)
        return 0;
    if (r->row->taps && yyjson_is_false(config_first(r, "use_sliding_window")))
        return 0;
    if (!types && !config_first(r, "global_attn_every_n_layers"))
        return 0;
    if (!types)
        TRY(config_whole(r, "global_attn_every_n_layers", 0, 1, 1024, &every));
    else if (yyjson_arr_size(types) != r->n_layer)
        return config_bad(r, "layer_types");
    struct config_key key = config_name(r, "attention.sliding_window_pattern");
    TRY(gguf_keys_array(&r->build.keys, key.s, GGUF_BOOL, r->n_layer));
    for (uint32_t l = 0; l < r->n_layer; l++) {
        bool near = every && l % every != 0;

        if (types)
            near = config_layer_is(types, l, "sliding_attention");
        TRY(gguf_keys_add_u8(&r->build.keys, near));
    }
    return 0;
}

/* Refuses what encoders of texts may have and the engine has not, and writes that they are no
 * decoders. */
static int config_encoder(struct reader *r) {
    static const char *const never[] = {"is_decoder",     "causal",       "prenorm",
                                        "parallel_block", "use_rms_norm", "rotary_emb_interleaved"};
    yyjson_val *act = config_first(r, "hidden_act hidden_activation activation_function");
    yyjson_val *kind = config_first(r, "position_embedding_type");
    double part = reader_number(r, "rotary_emb_fraction");

    if (!r->row->encoder)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(never); i++)
        if (yyjson_get_bool(config_first(r, never[i])))
            return err_set(r->err, 0, NULL, "config.json: %s is not supported for %s models",
                           never[i], r->row->model_type);
    if (act && !json_is(act, r->row->activation))
        return err_set(r->err, 0, NULL, "config.json: the activation %s is not supported for %s",
                       quoted(json_cstr(act) ? json_cstr(act) : "").s, r->row->model_type);
    if (kind && r->row->learned_positions && !json_is(kind, "absolute"))
        return err_set(r->err, 0, NULL, "config.json: position_embedding_type %s is not supported",
                       quoted(json_cstr(kind) ? json_cstr(kind) : "").s);
    if (!isnan(part) && part != 1)
        return config_bad(r, "rotary_emb_fraction");
    return gguf_keys_bool(&r->build.keys, config_name(r, "attention.causal").s, false);
}

/* Kinds of blocks, as a letter and a word. */
static const struct {
    char letter;
    const char *word;
} block_kinds[] = {{'M', "mamba"}, {'*', "attention"}, {'E', "moe"}, {'-', "mlp"}};

/* Returns the letter of blocks with an FFN. */
static char config_ffn_letter(const struct reader *r) {
    return r->row->dense ? '-' : 'E';
}

/* Finds the letter of block @l, which a text of letters or a list of words gives. Returns 0 or
 * -EINVAL: none is there, or one that is not supported. */
static int config_block(const struct reader *r, uint32_t l, char *out) {
    yyjson_val *list = config_first(r, "layers_block_type"), *word = yyjson_arr_get(list, l);
    const char *letters = json_cstr(config_first(r, "hybrid_override_pattern"));
    bool listed = yyjson_arr_size(list) == r->n_layer;

    if (!listed && !(letters && strlen(letters) == r->n_layer))
        return config_bad(r, "hybrid_override_pattern");
    for (size_t i = 0; i < ARRAY_SIZE(block_kinds); i++) {
        char letter = block_kinds[i].letter;
        bool same = listed ? json_is(word, block_kinds[i].word) : letters[l] == letter;
        bool other_ffn = strchr("E-", letter) && letter != config_ffn_letter(r);

        if (same && !other_ffn) {
            *out = letter;
            return 0;
        }
    }
    return err_set(r->err, 0, NULL,
                   "config.json: block %u is neither mamba, attention nor %s; other kinds are not "
                   "supported for these %s models",
                   l, r->row->dense ? "mlp" : "moe", r->row->model_type);
}

/* Writes @key by block: @n in those of kind @letter and of multi-token prediction, else 0. */
static int config_put_blocks(struct reader *r, const char *key, char letter, uint32_t n) {
    uint32_t all = r->n_layer + r->n_mtp;

    TRY(gguf_keys_array(&r->build.keys, config_name(r, key).s, GGUF_U32, all));
    for (uint32_t l = 0; l < all; l++) {
        char kind = letter;

        if (l < r->n_layer)
            TRY(config_block(r, l, &kind));
        TRY(gguf_keys_add_u32(&r->build.keys, kind == letter ? n : 0));
    }
    return 0;
}

/* Refuses what blocks of Nemotron may have and the engine has not: activations, limits of time
 * steps, experts in a latent space. */
static int config_check_blocks(const struct reader *r) {
    yyjson_val *act = config_first(r, "mlp_hidden_act");
    yyjson_val *limit = config_first(r, "time_step_limit");
    yyjson_val *low = yyjson_arr_get(limit, 0), *high = yyjson_arr_get(limit, 1);

    if (act && !json_is(act, "relu2"))
        return err_set(r->err, 0, NULL, "config.json: mlp_hidden_act %s is not supported",
                       quoted(json_cstr(act) ? json_cstr(act) : "").s);
    if (reader_number(r, "moe_latent_size") > 0)
        return err_set(r->err, 0, NULL,
                       "config.json: moe_latent_size: experts in a latent space are not supported");
    if (yyjson_get_num(low) > 0 || (yyjson_is_num(high) && yyjson_get_num(high) < 1e6))
        return err_set(r->err, 0, NULL, "config.json: time_step_limit is not supported");
    return 0;
}

/* Writes the sizes of Mamba-2 and the widths of FFNs by block. */
static int config_blocks(struct reader *r) {
    uint32_t n_ff, heads, dim;

    if (!r->row->blocks)
        return 0;
    TRY(config_check_blocks(r));
    TRY(config_whole(r, r->row->dense ? "intermediate_size" : "moe_intermediate_size", 0, 1,
                     1 << 20, &n_ff));
    TRY(config_whole(r, "mamba_num_heads", 0, 1, 1 << 12, &heads));
    TRY(config_whole(r, "mamba_head_dim", 0, 1, 1 << 12, &dim));
    TRY(config_add_u32(r, "ssm.inner_size", heads * dim));
    return config_put_blocks(r, "feed_forward_length", config_ffn_letter(r), n_ff);
}

/* Writes the number of key heads of each layer: layers without a window have another one where
 * their keys are their values. */
static int config_full_key_heads(struct reader *r) {
    struct config_key key = config_name(r, "attention.head_count_kv");
    yyjson_val *types = config_first(r, "layer_types");
    uint32_t n = r->n_head_kv;

    if (yyjson_arr_size(types) != r->n_layer)
        return config_bad(r, "layer_types");
    if (yyjson_get_bool(config_first(r, "attention_k_eq_v")))
        TRY(config_whole(r, "num_global_key_value_heads", n, 1, 1 << 12, &n));
    TRY(gguf_keys_array(&r->build.keys, key.s, GGUF_U32, r->n_layer));
    for (uint32_t l = 0; l < r->n_layer; l++) {
        bool full = config_layer_is(types, l, "full_attention");

        TRY(gguf_keys_add_u32(&r->build.keys, full ? n : r->n_head_kv));
    }
    return 0;
}

/* Writes the number of key heads, by layer where some layers have no attention. */
static int config_key_heads(struct reader *r) {
    struct config_key key = config_name(r, "attention.head_count_kv");
    yyjson_val *types = config_first(r, "layer_types");

    if (r->row->two_heads)
        return config_full_key_heads(r);
    if (r->row->blocks)
        return config_put_blocks(r, "attention.head_count_kv", '*', r->n_head_kv);
    if (!r->row->by_layer_kv)
        return config_add_u32(r, "attention.head_count_kv", r->n_head_kv);
    yyjson_val *list = config_first(r, "full_attn_idxs");
    if ((types || !list) && yyjson_arr_size(types) != r->n_layer)
        return config_bad(r, "layer_types");
    if (!types && (!yyjson_is_arr(list) || yyjson_arr_size(list) > r->n_layer))
        return config_bad(r, "full_attn_idxs");
    TRY(gguf_keys_array(&r->build.keys, key.s, GGUF_U32, r->n_layer));
    for (uint32_t l = 0; l < r->n_layer; l++) {
        uint32_t n = config_layer_attends(r, l) ? r->n_head_kv : 0;

        TRY(gguf_keys_add_u32(&r->build.keys, n));
    }
    return 0;
}

/* Writes how many layers and blocks of multi-token prediction there are. */
static int config_layers(struct reader *r) {
    TRY(config_add_u32(r, "block_count", r->n_layer + r->n_mtp));
    return r->n_mtp ? config_add_u32(r, "nextn_predict_layers", r->n_mtp) : 0;
}

/* Writes the width of the FFN of each layer: layers that read the keys of others may have one that
 * is twice as wide. */
static int config_wide_feed_forward(struct reader *r, uint32_t n_ff) {
    struct config_key key = config_name(r, "feed_forward_length");
    uint32_t shared;

    TRY(config_whole(r, "num_kv_shared_layers", 0, 0, r->n_layer, &shared));
    TRY(gguf_keys_array(&r->build.keys, key.s, GGUF_U32, r->n_layer));
    for (uint32_t l = 0; l < r->n_layer; l++) {
        uint32_t times = l + shared < r->n_layer ? 1 : 2;

        TRY(gguf_keys_add_u32(&r->build.keys, times * n_ff));
    }
    return 0;
}

/* Writes the width of the FFN. That of LFM2 is two thirds of the number in config.json, times a
 * factor, rounded up to a multiple. */
static int config_feed_forward(struct reader *r) {
    const char *keys = "intermediate_size n_inner";
    yyjson_val *adjusts = config_first(r, "block_auto_adjust_ff_dim");
    double factor = reader_number(r, "block_ffn_dim_multiplier");
    uint32_t n, multiple;

    if (r->row->adjusts_ff)
        keys = "block_ff_dim intermediate_size";
    if (!config_first(r, keys) || r->row->blocks)
        return 0;
    TRY(config_whole(r, keys, 0, 0, 1 << 24, &n));
    if (yyjson_get_bool(config_first(r, "use_double_wide_mlp")))
        return config_wide_feed_forward(r, n);
    if (!r->row->adjusts_ff || (adjusts && !yyjson_get_bool(adjusts)))
        return config_add_u32(r, "feed_forward_length", n);
    TRY(config_whole(r, "block_multiple_of", 256, 1, 1 << 20, &multiple));
    if (isnan(factor))
        factor = 1;
    if (!(factor > 0 && factor <= 64))
        return config_bad(r, "block_ffn_dim_multiplier");
    n = (uint32_t)(factor * (2 * n / 3));
    return config_add_u32(r, "feed_forward_length", (n + multiple - 1) / multiple * multiple);
}

/* Refuses experts that the engine would pick or weigh otherwise. */
static int config_check_experts(const struct reader *r) {
    yyjson_val *normed = config_first(r, "norm_topk_prob");
    double step = reader_number(r, "decoder_sparse_step");

    if (r->row->sums_picks && normed && !yyjson_get_bool(normed))
        return err_set(r->err, 0, NULL,
                       "config.json: norm_topk_prob false is not supported for %s models",
                       r->row->model_type);
    if (r->row->plain_picks && yyjson_get_bool(normed))
        return err_set(r->err, 0, NULL,
                       "config.json: norm_topk_prob true is not supported for %s models",
                       r->row->model_type);
    if (step > 1 || yyjson_arr_size(config_first(r, "mlp_only_layers")) > 0)
        return err_set(r->err, 0, NULL,
                       "config.json: layers without experts among layers with experts "
                       "(decoder_sparse_step, mlp_only_layers) are not supported");
    return 0;
}

/* Refuses layers without rotary positions that are others than the engine's. */
static int config_check_plain_layers(const struct reader *r) {
    yyjson_val *rotary = config_first(r, "no_rope_layers");
    uint32_t period = r->row->plain_period;

    JSON_EACH_AT(l, v, rotary) {
        bool rotates = period == 0 || (l + 1) % period != 0;

        if (l < r->n_layer && rotates != (yyjson_get_num(v) != 0))
            return err_set(r->err, 0, NULL,
                           "config.json: no_rope_layers[%zu] is not supported for %s models",
                           (size_t)l, r->row->model_type);
    }
    return 0;
}

/* Parameters of RoPE: the member of config.json that has them, and what it says. */
struct config_rope {
    yyjson_val *from;
    /* n_turned: values of a head that have a frequency; others of the n_rot have frequency 0 */
    uint32_t n_rot, n_turned;
    double base;
};

static double rope_number(const struct config_rope *p, const char *key) {
    yyjson_val *v = json_given(p->from, key);

    return yyjson_is_num(v) && isfinite(yyjson_get_num(v)) ? yyjson_get_num(v) : NAN;
}

/* Writes the number of @key as GGUF's key @to if it is there. */
static int rope_copy(struct reader *r, const struct config_rope *p, const char *key,
                     const char *to) {
    double v = rope_number(p, key);

    return isfinite(v) ? config_add_f32(r, to, v) : 0;
}

/* Adds a vector of @n values of F32, whose place *data is. */
static int rope_tensor(struct reader *r, const char *name, uint32_t n, uint8_t **data) {
    struct gguf_built t = {.type = TENSOR_F32, .ne = {n, 1, 1, 1}, .n_dims = 1};

    snprintf(t.name, sizeof(t.name), "%s", name);
    return gguf_build_tensor(&r->build, &t, n * sizeof(float), data);
}

/* Llama 3's scaling: frequencies of long waves are divided by the factor, those of short ones stay,
 * and between the two the divisor is interpolated. */
static int rope_llama3(struct reader *r, const struct config_rope *p) {
    double factor = rope_number(p, "factor"), low = rope_number(p, "low_freq_factor");
    double high = rope_number(p, "high_freq_factor");
    double context = rope_number(p, "original_max_position_embeddings");
    uint8_t *data;

    if (!(factor >= 1 && low > 0 && high > low && context > 0))
        return config_bad(r, "rope_scaling");
    TRY(rope_tensor(r, "rope_freqs.weight", p->n_rot / 2, &data));
    for (uint32_t i = 0; i < p->n_rot / 2; i++) {
        double wave = 2 * M_PI * pow(p->base, 2.0 * i / p->n_rot);
        double smooth = (context / wave - low) / (high - low);
        double divisor = 1 / ((1 - smooth) / factor + smooth);

        if (wave < context / high)
            divisor = 1;
        else if (wave > context / low)
            divisor = factor;
        memcpy(data + i * sizeof(float), &(float){(float)divisor}, sizeof(float));
    }
    return 0;
}

/* Pairs (i, i + half a head), of which the first n_turned / 2 turn. */
static int rope_proportional(struct reader *r, const struct config_rope *p) {
    uint8_t *data;

    TRY(rope_tensor(r, "rope_freqs.weight", p->n_rot / 2, &data));
    for (uint32_t i = 0; i < p->n_rot / 2; i++) {
        float divisor = i < p->n_turned / 2 ? 1 : 1e30f;

        memcpy(data + i * sizeof(divisor), &divisor, sizeof(divisor));
    }
    return 0;
}

static int rope_factors(struct reader *r, const struct config_rope *p, const char *key,
                        const char *name) {
    yyjson_val *list = yyjson_obj_get(p->from, key);
    uint8_t *data;

    if (yyjson_arr_size(list) != p->n_rot / 2)
        return config_bad(r, "rope_scaling");
    TRY(rope_tensor(r, name, p->n_rot / 2, &data));
    JSON_EACH_AT(i, v, list) {
        float f = (float)yyjson_get_num(v);

        if (!yyjson_is_num(v))
            return config_bad(r, "rope_scaling");
        memcpy(data + i * sizeof(f), &f, sizeof(f));
    }
    return 0;
}

/* LongRoPE: two lists of divisors, and a factor of the scores by the ratio of the contexts. */
static int rope_long(struct reader *r, const struct config_rope *p) {
    double context = reader_number(r, "max_position_embeddings"), factor = 1;
    double original = reader_number(r, "original_max_position_embeddings");

    if (isnan(original))
        original = rope_number(p, "original_max_position_embeddings");
    if (!(context > 0 && original > 1 && original < 1 << 30))
        return config_bad(r, "original_max_position_embeddings");
    if (rope_number(p, "attention_factor") > 0)
        factor = rope_number(p, "attention_factor");
    else if (context > original)
        factor = sqrt(1 + log(context / original) / log(original));
    TRY(config_add_text(r, config_name(r, "rope.scaling.type").s, "longrope"));
    TRY(config_add_u32(r, "rope.scaling.original_context_length", (uint32_t)original));
    TRY(config_add_f32(r, "rope.scaling.attn_factor", factor));
    TRY(rope_factors(r, p, "long_factor", "rope_factors_long.weight"));
    return rope_factors(r, p, "short_factor", "rope_factors_short.weight");
}

static int rope_yarn(struct reader *r, const struct config_rope *p) {
    double factor = rope_number(p, "factor"), given = rope_number(p, "attention_factor");
    double original = rope_number(p, "original_max_position_embeddings");

    if (!(factor >= 1))
        return config_bad(r, "rope_scaling");
    TRY(config_add_text(r, config_name(r, "rope.scaling.type").s, "yarn"));
    TRY(config_add_f32(r, "rope.scaling.factor", factor));
    if (original >= 1 && original < 1 << 30)
        TRY(config_add_u32(r, "rope.scaling.original_context_length", (uint32_t)original));
    if (original >= 1 && original < 1 << 30 && r->row->latent)
        TRY(config_add_u32(r, "attention.temperature_length", (uint32_t)original));
    TRY(rope_copy(r, p, "beta_fast", "rope.scaling.yarn_beta_fast"));
    TRY(rope_copy(r, p, "beta_slow", "rope.scaling.yarn_beta_slow"));
    double all = rope_number(p, "mscale_all_dim");
    if (isfinite(all)) /* files of latent attention have the product with YaRN's own factor */
        TRY(config_add_f32(r, "rope.scaling.yarn_log_multiplier",
                           r->row->latent ? 0.1 * all : all));
    TRY(rope_copy(r, p, "llama_4_scaling_beta", "attention.temperature_scale"));
    /* GGUF's factor is beside the one that follows from `factor` */
    if (given > 0)
        return config_add_f32(r, "rope.scaling.attn_factor", given / (1 + 0.1 * log(factor)));
    return 0;
}

static int rope_linear(struct reader *r, const struct config_rope *p) {
    TRY(config_add_text(r, config_name(r, "rope.scaling.type").s, "linear"));
    return rope_copy(r, p, "factor", "rope.scaling.factor");
}

/* Writes how many pairs rotate by time, height and width. */
static int rope_sections(struct reader *r, const struct config_rope *p) {
    yyjson_val *list = yyjson_obj_get(p->from, "mrope_section");
    struct config_key key = config_name(r, "rope.dimension_sections");

    if (!list && !r->row->halved)
        return 0;
    if (yyjson_arr_size(list) != 3)
        return config_bad(r, "mrope_section");
    TRY(gguf_keys_array(&r->build.keys, key.s, GGUF_U32, 4));
    JSON_EACH(v, list) {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) > 1024)
            return config_bad(r, "mrope_section");
        TRY(gguf_keys_add_u32(&r->build.keys, (uint32_t)yyjson_get_uint(v)));
    }
    return gguf_keys_add_u32(&r->build.keys, 0);
}

/* Writes how many layers add values of pictures to the first layers of the text model. */
static int config_pictures(struct reader *r) {
    yyjson_val *vision = yyjson_obj_get(r->config, "vision_config");
    size_t n = yyjson_arr_size(yyjson_obj_get(vision, "deepstack_visual_indexes"));

    if (n == 0 || n > r->n_layer)
        return 0;
    return config_add_u32(r, "n_deepstack_layers", (uint32_t)n);
}

static int rope_plain(struct reader *r, const struct config_rope *p) {
    (void)r;
    (void)p;
    return 0;
}

static const struct {
    const char *name;
    int (*write)(struct reader *r, const struct config_rope *p);
} ropes[] = {
    {"default", rope_plain}, {"none", rope_plain},    {"mrope", rope_plain},
    {"linear", rope_linear}, {"llama3", rope_llama3}, {"longrope", rope_long},
    {"yarn", rope_yarn},     {"su", rope_long},       {"proportional", rope_proportional},
};

/* Finds the parameters of RoPE: newer files have all of them in rope_parameters, by kind of layer
 * where these differ. */
static int rope_find(struct reader *r, struct config_rope *p) {
    double part = reader_number(r, "partial_rotary_factor"), n = reader_number(r, "rotary_dim");
    yyjson_val *from = config_first(r, "rope_parameters rope_scaling");
    yyjson_val *window = yyjson_obj_get(from, "sliding_attention");

    if (yyjson_obj_get(from, "full_attention"))
        from = yyjson_obj_get(from, "full_attention");
    else if (r->row->two_heads)
        return config_bad(r, "rope_parameters");
    *p = (struct config_rope){
        .from = from, .base = reader_number(r, "rope_theta global_rope_theta rotary_emb_base")};
    if (isnan(part))
        part = rope_number(p, "partial_rotary_factor");
    /* with latent attention, full_dim is the part that rotates already */
    if (isnan(n))
        n = isnan(part) || r->row->latent ? r->full_dim : floor(r->full_dim * part);
    if (!(n >= 2 && n <= r->full_dim))
        return config_bad(r, "partial_rotary_factor");
    p->n_rot = p->n_turned = (uint32_t)n;
    if (json_is(json_given(from, "rope_type"), "proportional"))
        p->n_rot = r->full_dim;
    if (isfinite(rope_number(p, "rope_theta")))
        p->base = rope_number(p, "rope_theta");
    if (isnan(p->base))
        p->base = 10000;
    if (yyjson_is_num(yyjson_obj_get(window, "rope_theta")))
        TRY(config_add_f32(r, "rope.freq_base_swa",
                           yyjson_get_num(yyjson_obj_get(window, "rope_theta"))));
    return 0;
}

static int config_rope(struct reader *r) {
    struct config_rope p;

    TRY(rope_find(r, &p));
    if (r->row->halved && (p.n_rot % 2 || p.n_rot > r->head_dim))
        return config_bad(r, "partial_rotary_factor");
    r->n_rot = p.n_rot;
    TRY(config_add_u32(r, "rope.dimension_count", p.n_rot));
    if (r->row->two_heads)
        TRY(config_add_u32(r, "rope.dimension_count_swa", r->head_dim));
    TRY(config_add_f32(r, "rope.freq_base", p.base));
    TRY(rope_sections(r, &p));
    yyjson_val *type = json_given(p.from, "rope_type");
    type = type ? type : json_given(p.from, "type");
    if (!type)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(ropes); i++)
        if (json_is(type, ropes[i].name))
            return ropes[i].write(r, &p);
    return err_set(r->err, 0, NULL, "config.json: RoPE scaling %s is not supported",
                   quoted(json_cstr(type) ? json_cstr(type) : "").s);
}

/* Writes the sizes of heads. With latent attention all heads share one key and one value, of which
 * the engine's tensors make those of each head. */
static int config_heads(struct reader *r) {
    uint32_t rank, nope, value;

    if (!r->row->latent) {
        TRY(config_key_heads(r));
        TRY(config_add_u32(r, "attention.key_length", r->full_dim));
        TRY(config_add_u32(r, "attention.value_length", r->full_dim));
        if (!r->row->two_heads)
            return 0;
        TRY(config_add_u32(r, "attention.key_length_swa", r->head_dim));
        return config_add_u32(r, "attention.value_length_swa", r->head_dim);
    }
    TRY(config_whole(r, "kv_lora_rank", 0, 1, 1 << 16, &rank));
    TRY(config_whole(r, "qk_nope_head_dim", 0, 1, 1 << 12, &nope));
    TRY(config_whole(r, "v_head_dim", 0, 1, 1 << 12, &value));
    TRY(config_add_u32(r, "attention.head_count_kv", 1));
    TRY(config_add_u32(r, "attention.key_length", rank + r->head_dim));
    TRY(config_add_u32(r, "attention.value_length", rank));
    TRY(config_add_u32(r, "attention.key_length_mla", nope + r->head_dim));
    return config_add_u32(r, "attention.value_length_mla", value);
}

/* Refuses choices of experts that latent attention's models have and the engine has not. */
static int config_check_choice(const struct reader *r) {
    yyjson_val *method = config_first(r, "topk_method"), *scores = config_first(r, "scoring_func");
    const char *should = r->row->gating == 1 ? "softmax" : "sigmoid";

    if (!r->row->latent)
        return 0;
    if (method && !json_is(method, "greedy") && !json_is(method, "noaux_tc"))
        return err_set(r->err, 0, NULL, "config.json: topk_method %s is not supported",
                       quoted(json_cstr(method) ? json_cstr(method) : "").s);
    if (scores && !json_is(scores, should))
        return err_set(r->err, 0, NULL, "config.json: scoring_func %s is not supported for %s",
                       quoted(json_cstr(scores) ? json_cstr(scores) : "").s, r->row->model_type);
    return 0;
}

/* Writes the sizes of delta nets, and which layers have them. */
static int config_hybrid(struct reader *r) {
    yyjson_val *types = config_first(r, "layer_types");
    struct config_key key = config_name(r, "attention.recurrent_layers");
    uint32_t heads, dim, key_dim;

    if (!r->row->hybrid)
        return 0;
    TRY(config_whole(r, "linear_num_value_heads", 0, 1, 1024, &heads));
    TRY(config_whole(r, "linear_value_head_dim", 0, 1, 1024, &dim));
    TRY(config_whole(r, "linear_key_head_dim", dim, 1, 1024, &key_dim));
    if (key_dim != dim)
        return config_bad(r, "linear_value_head_dim");
    TRY(config_add_u32(r, "ssm.inner_size", heads * dim));
    if (r->row->grouped_heads)
        TRY(gguf_keys_bool(&r->build.keys, config_name(r, "ssm.grouped_heads").s, true));
    if (!types)
        return 0;
    if (yyjson_arr_size(types) != r->n_layer)
        return config_bad(r, "layer_types");
    TRY(gguf_keys_array(&r->build.keys, key.s, GGUF_BOOL, r->n_layer));
    for (uint32_t l = 0; l < r->n_layer; l++)
        TRY(gguf_keys_add_u8(&r->build.keys, config_layer_is(types, l, "linear_attention")));
    return 0;
}

/* Writes what a block drafter reads of its model: the layers, of which GGUF names those whose
 * inputs are read, one behind the outputs of config.json, and the token that stands for one that is
 * to be drafted. */
static int config_taps(struct reader *r) {
    yyjson_val *layers = config_first(r, "target_layer_ids");
    yyjson_val *act = config_first(r, "hidden_act");
    bool windows = yyjson_is_true(config_first(r, "use_sliding_window"));
    struct config_key key = config_name(r, "target_layers");
    uint32_t mask;

    if (!r->row->taps)
        return 0;
    if (windows && !config_first(r, "layer_types"))
        return config_bad(r, "layer_types");
    TRY(config_whole(r, "mask_token_id", 0, 0, r->n_vocab - 1, &mask));
    TRY(gguf_keys_u32(&r->build.keys, "tokenizer.ggml.mask_token_id", mask));
    if (act && !json_cstr(act))
        return config_bad(r, "hidden_act");
    if (act)
        TRY(config_add_text(r, config_name(r, "hidden_act").s, json_cstr(act)));
    if (yyjson_arr_size(layers) == 0 || yyjson_arr_size(layers) > 1024)
        return config_bad(r, "target_layer_ids");
    TRY(gguf_keys_array(&r->build.keys, key.s, GGUF_U32, yyjson_arr_size(layers)));
    JSON_EACH(v, layers) {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) >= 1024)
            return config_bad(r, "target_layer_ids");
        TRY(gguf_keys_add_u32(&r->build.keys, (uint32_t)yyjson_get_uint(v) + 1));
    }
    return 0;
}

/* Writes the whole number @v of top_k, of which some publishers write -1 for none. */
static int config_top_k(struct reader *r, double v) {
    uint32_t k = v > 0 ? (uint32_t)MIN(v, (double)UINT32_MAX) : 0;

    return gguf_keys_u32(&r->build.keys, "general.sampling.top_k", k);
}

int reader_write_sampling(struct reader *r, const char *text, size_t len) {
    static const struct {
        const char *from, *to;
    } map[] = {
        {"temperature", "general.sampling.temp"},
        {"top_k", NULL},
        {"top_p", "general.sampling.top_p"},
        {"min_p", "general.sampling.min_p"},
        {"repetition_penalty", "general.sampling.penalty_repeat"},
    };
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    if (!text)
        return 0;
    TRY(json_parse(&doc, text, len, YYJSON_READ_ALLOW_INF_AND_NAN));
    for (size_t i = 0; i < ARRAY_SIZE(map); i++) {
        yyjson_val *v = json_given(yyjson_doc_get_root(doc), map[i].from);

        if (!v)
            continue;
        if (!yyjson_is_num(v) || !isfinite(yyjson_get_num(v)))
            return err_set(r->err, 0, NULL, "generation_config.json: %s is no number", map[i].from);
        double number = yyjson_get_num(v);
        if (map[i].to)
            TRY(gguf_keys_f32(&r->build.keys, map[i].to, (float)number));
        else
            TRY(config_top_k(r, number));
    }
    return 0;
}

int reader_write_keys(struct reader *r) {
    TRY(config_add_text(r, "general.architecture", r->row->arch));
    TRY(config_add_text(r, "general.type", "model"));
    TRY(config_layers(r));
    TRY(config_feed_forward(r));
    TRY(config_context(r));
    TRY(config_convert(r, r->row->keys));
    TRY(config_convert(r, arch_keys));
    TRY(config_heads(r));
    TRY(config_hybrid(r));
    TRY(config_blocks(r));
    TRY(config_check_choice(r));
    if (r->row->gating)
        TRY(config_add_u32(r, "expert_gating_func", r->row->gating));
    TRY(config_windows(r));
    TRY(config_check_experts(r));
    TRY(config_check_plain_layers(r));
    TRY(config_pictures(r));
    TRY(config_encoder(r));
    TRY(config_taps(r));
    if (r->row->learned_positions)
        return 0;
    return config_rope(r);
}
