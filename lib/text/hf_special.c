/*
 * hf_special - finds the special tokens: those that the post-processor adds to every text, the ends
 * of a generation, which four files may name, and the chat templates.
 */

#include <stdio.h>

#include "base/try.h"
#include "text/hf_tokenizer_private.h"

#define HF_TEMPLATES_MAX 32

/* ---- post-processor ---- */

/* Enters the token @id, which stands before or behind the text. */
static int hf_add_around(struct hf_reader *r, yyjson_val *id, bool behind) {
    int32_t *place = behind ? &r->tail : &r->lead;

    if (!yyjson_is_uint(id) || yyjson_get_uint(id) >= r->n)
        return hf_fail(r, "post_processor: the id of a special token is not below %u", r->n);
    if (*place >= 0)
        return hf_fail(r, "post_processor adds several tokens on one side, which is not supported");
    *place = (int32_t)yyjson_get_uint(id);
    return 0;
}

static int hf_read_template(struct hf_reader *r, yyjson_val *v) {
    yyjson_val *tokens = yyjson_obj_get(v, "special_tokens");
    bool behind = false;

    JSON_EACH(item, yyjson_obj_get(v, "single")) {
        const char *name = json_cstr(yyjson_obj_get(yyjson_obj_get(item, "SpecialToken"), "id"));
        yyjson_val *ids;

        if (yyjson_obj_get(item, "Sequence")) {
            behind = true;
            continue;
        }
        ids = name ? yyjson_obj_get(yyjson_obj_get(tokens, name), "ids") : NULL;
        if (yyjson_arr_size(ids) != 1)
            return hf_fail(r, "post_processor.single has a token without one id");
        TRY(hf_add_around(r, yyjson_arr_get_first(ids), behind));
    }
    return 0;
}

static int hf_read_processor(struct hf_reader *r, yyjson_val *v, int depth) {
    yyjson_val *type = yyjson_obj_get(v, "type");

    if (json_is(type, "Sequence") && depth < HF_SEQUENCE_DEPTH) {
        JSON_EACH(item, yyjson_obj_get(v, "processors")) {
            TRY(hf_read_processor(r, item, depth + 1));
        }
        return 0;
    }
    if (json_is(type, "ByteLevel"))
        return 0;
    if (json_is(type, "TemplateProcessing"))
        return hf_read_template(r, v);
    if (json_is(type, "BertProcessing RobertaProcessing")) {
        TRY(hf_add_around(r, yyjson_arr_get_last(yyjson_obj_get(v, "cls")), false));
        return hf_add_around(r, yyjson_arr_get_last(yyjson_obj_get(v, "sep")), true);
    }
    return hf_fail(r, "post_processor.type %s is not supported", hf_show(type).s);
}

int hf_read_post_processor(struct hf_reader *r) {
    yyjson_val *v = json_given(r->root, "post_processor");

    if (!v)
        return 0;
    return hf_read_processor(r, v, 0);
}

/* ---- special ids ---- */

/* Returns the id of the token that member @key of @file names, by its text or in an object with its
 * content; -1: there is none. */
static int32_t hf_named(const struct hf_reader *r, yyjson_val *file, const char *key) {
    yyjson_val *v = json_given(file, key);

    if (yyjson_is_obj(v))
        v = yyjson_obj_get(v, "content");
    return hf_find(r, hf_str(v));
}

/* Returns the text model's part of config.json; NULL: it has none. */
static yyjson_val *hf_text_config(const struct hf_reader *r) {
    return json_given(r->model_config, "text_config");
}

/* Returns the id of special token @name ("bos"): of the tokenizer's own files, or else the number
 * in the model's. */
static int32_t hf_special_id(const struct hf_reader *r, const char *name) {
    yyjson_val *const by_text[] = {r->config, r->map};
    yyjson_val *const by_id[] = {r->generation, r->model_config, hf_text_config(r)};
    char key[32];

    snprintf(key, sizeof(key), "%s_token", name);
    for (size_t i = 0; i < ARRAY_SIZE(by_text); i++) {
        int32_t id = hf_named(r, by_text[i], key);

        if (id >= 0)
            return id;
    }
    snprintf(key, sizeof(key), "%s_token_id", name);
    for (size_t i = 0; i < ARRAY_SIZE(by_id); i++) {
        yyjson_val *v = json_given(by_id[i], key);

        if (yyjson_is_arr(v))
            v = yyjson_arr_get_first(v);
        if (yyjson_is_uint(v) && yyjson_get_uint(v) < r->n)
            return (int32_t)yyjson_get_uint(v);
    }
    return -1;
}

static int hf_write_id(struct hf_reader *r, const char *name, int32_t id) {
    char key[64];

    snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", name);
    if (id < 0)
        return 0;
    return gguf_keys_u32(r->out, key, (uint32_t)id);
}

/* Writes the tokens of filling in, which no file names, by the texts in use. */
static int hf_write_fim(struct hf_reader *r) {
    static const struct {
        const char *key, *text;
    } fim[] = {
        {"fim_pre", "<|fim_prefix|>"},
        {"fim_pre", "<fim_prefix>"},
        {"fim_pre", "<\xEF\xBD\x9C"
                    "fim\xE2\x96\x81"
                    "begin\xEF\xBD\x9C>"},
        {"fim_suf", "<|fim_suffix|>"},
        {"fim_suf", "<fim_suffix>"},
        {"fim_suf", "<\xEF\xBD\x9C"
                    "fim\xE2\x96\x81"
                    "hole\xEF\xBD\x9C>"},
        {"fim_mid", "<|fim_middle|>"},
        {"fim_mid", "<fim_middle>"},
        {"fim_mid", "<\xEF\xBD\x9C"
                    "fim\xE2\x96\x81"
                    "end\xEF\xBD\x9C>"},
    };
    const char *done = "";

    for (size_t i = 0; i < ARRAY_SIZE(fim); i++) {
        int32_t id = hf_find(r, (struct gguf_str){fim[i].text, strlen(fim[i].text)});

        if (id < 0 || r->token[id].type == TOKEN_NORMAL || strcmp(done, fim[i].key) == 0)
            continue;
        TRY(hf_write_id(r, fim[i].key, id));
        done = fim[i].key;
    }
    return 0;
}

/* Collects the ids at eos_token_id of @file, a number or several, in ids[*n]. */
static int hf_collect_ends(struct hf_reader *r, yyjson_val *file, const char *name, uint32_t *ids,
                           uint32_t *n) {
    yyjson_val *v = json_given(file, "eos_token_id"), *one = yyjson_is_arr(v) ? NULL : v;

    if (yyjson_arr_size(v) + (one != NULL) > HF_ENDS_MAX - *n)
        return err_set(r->err, 0, NULL, "%s: eos_token_id has too many entries", name);
    JSON_EACH(item, v) {
        if (!yyjson_is_uint(item) || yyjson_get_uint(item) >= r->n)
            return err_set(r->err, 0, NULL, "%s: eos_token_id has an entry that is no id below %u",
                           name, r->n);
        ids[(*n)++] = (uint32_t)yyjson_get_uint(item);
    }
    if (one && (!yyjson_is_uint(one) || yyjson_get_uint(one) >= r->n))
        return err_set(r->err, 0, NULL, "%s: eos_token_id is no id below %u", name, r->n);
    if (one)
        ids[(*n)++] = (uint32_t)yyjson_get_uint(one);
    return 0;
}

static int hf_write_ends(struct hf_reader *r) {
    uint32_t ids[HF_ENDS_MAX], n = 0;

    TRY(hf_collect_ends(r, r->generation, "generation_config.json", ids, &n));
    TRY(hf_collect_ends(r, r->model_config, "config.json", ids, &n));
    TRY(hf_collect_ends(r, hf_text_config(r), "config.json", ids, &n));
    TRY(gguf_keys_array(r->out, HF_KEY_ENDS, GGUF_U32, n));
    for (uint32_t i = 0; i < n; i++)
        TRY(gguf_keys_add_u32(r->out, ids[i]));
    return 0;
}

/* Writes the flags of tokens, unless no token has one. */
static int hf_write_flags(struct hf_reader *r) {
    uint32_t n = MAX(r->n, r->n_limit), id = 0;

    while (id < r->n && !r->token[id].flags)
        id++;
    if (id == r->n)
        return 0;
    TRY(gguf_keys_array(r->out, HF_KEY_FLAGS, GGUF_U8, n));
    for (id = 0; id < n; id++) {
        uint8_t flags = id < r->n ? r->token[id].flags : 0;

        TRY(gguf_keys_add_u8(r->out, flags));
    }
    return 0;
}

/* Reads flag @key of tokenizer_config.json, which the classes of `transformers` prefer to the
 * post-processor. */
static int hf_config_flag(struct hf_reader *r, const char *key, bool *value) {
    yyjson_val *v = json_given(r->config, key);

    if (v && !yyjson_is_bool(v))
        return err_set(r->err, 0, NULL, "tokenizer_config.json: %s is not a bool", key);
    if (v)
        *value = yyjson_get_bool(v);
    return 0;
}

int hf_write_specials(struct hf_reader *r) {
    int32_t bos = hf_special_id(r, "bos"), eos = hf_special_id(r, "eos");
    bool add_bos = r->lead >= 0, add_eos = r->tail >= 0;

    if (r->lead >= 0)
        bos = r->lead;
    if (r->tail >= 0)
        eos = r->tail;
    if (r->kind == KIND_PIECES && (r->lead < 0 || r->tail < 0))
        return hf_fail(r, "post_processor adds no tokens around a text, as WordPiece needs");
    TRY(hf_config_flag(r, "add_bos_token", &add_bos));
    TRY(hf_config_flag(r, "add_eos_token", &add_eos));
    TRY(hf_write_id(r, r->kind == KIND_PIECES ? "cls" : "bos", bos));
    TRY(hf_write_id(r, r->kind == KIND_PIECES ? "seperator" : "eos", eos));
    TRY(hf_write_id(r, "unknown", hf_find(r, r->unk)));
    TRY(hf_write_id(r, "padding", hf_special_id(r, "pad")));
    TRY(hf_write_fim(r));
    TRY(gguf_keys_bool(r->out, "tokenizer.ggml.add_bos_token", add_bos));
    TRY(gguf_keys_bool(r->out, "tokenizer.ggml.add_eos_token", add_eos));
    TRY(hf_write_ends(r));
    return hf_write_flags(r);
}

/* ---- templates ---- */

/* Returns whether @name can be the end of a key. */
static bool hf_is_key(yyjson_val *name) {
    const char *s = json_cstr(name);

    if (!s || !json_is_name(name, 64))
        return false;
    for (; *s; s++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", *s))
            return false;
    return true;
}

/* Writes the named templates of @list; the one called "default" only without @have_default. */
static int hf_write_named(struct hf_reader *r, yyjson_val *list, bool have_default) {
    if (yyjson_arr_size(list) > HF_TEMPLATES_MAX)
        return err_set(r->err, 0, NULL, "tokenizer_config.json: chat_template has more than %d",
                       HF_TEMPLATES_MAX);
    JSON_EACH_AT(i, item, list) {
        yyjson_val *name = yyjson_obj_get(item, "name");
        struct gguf_str text = hf_str(yyjson_obj_get(item, "template"));
        char key[128] = "tokenizer.chat_template";

        if (!hf_is_key(name) || !text.data)
            return err_set(r->err, 0, NULL,
                           "tokenizer_config.json: chat_template[%zu] has no name and template", i);
        if (json_is(name, "default") && have_default)
            continue;
        if (!json_is(name, "default"))
            snprintf(key, sizeof(key), "tokenizer.chat_template.%s", json_cstr(name));
        TRY(gguf_keys_string(r->out, key, text));
    }
    return 0;
}

int hf_write_templates(struct hf_reader *r, struct gguf_str file) {
    yyjson_val *v = json_given(r->config, "chat_template");

    if (v && !yyjson_is_str(v) && !yyjson_is_arr(v))
        return err_set(r->err, 0, NULL,
                       "tokenizer_config.json: chat_template is neither a string nor a list");
    if (!file.data && yyjson_is_str(v))
        file = hf_str(v);
    if (file.data)
        TRY(gguf_keys_string(r->out, "tokenizer.chat_template", file));
    return hf_write_named(r, v, file.data != NULL);
}
