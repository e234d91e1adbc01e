/*
 * hf_tokenizer - the order of reading. Everything is read into struct hf_reader first, because the
 * parts depend on each other: types of tokens on the model and on added_tokens, the kind of a BPE
 * vocabulary on the pre-tokenizer. Then the keys are written.
 *
 * The file is parsed as a whole; yyjson takes some 16 bytes for each value and nests without
 * recursion. No member of a large object is looked up by its name, which would take linear time.
 */

#include "text/hf_tokenizer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/try.h"
#include "text/hf_tokenizer_private.h"

#define SMALL_FILE_MAX (16u << 20) /* most bytes of a file beside tokenizer.json */

int hf_fail(const struct hf_reader *r, const char *fmt, ...) {
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(r->err, 0, NULL, "tokenizer.json: %s", text);
}

struct hf_shown hf_show(yyjson_val *v) {
    struct hf_shown shown;
    const char *text = json_text(v);

    if (text)
        printable_copy(shown.s, sizeof(shown.s), text, json_len(v), true);
    else
        snprintf(shown.s, sizeof(shown.s), "%s", v ? yyjson_get_type_desc(v) : "missing");
    return shown;
}

struct gguf_str hf_str(yyjson_val *v) {
    return (struct gguf_str){json_text(v), json_len(v)};
}

bool hf_same(struct gguf_str a, const char *b) {
    return a.data && a.len == strlen(b) && memcmp(a.data, b, a.len) == 0;
}

int hf_bool(const struct hf_reader *r, yyjson_val *object, const char *where, const char *key,
            bool *out) {
    yyjson_val *v = json_given(object, key);

    if (v && !yyjson_is_bool(v))
        return hf_fail(r, "%s.%s is not a bool", where, key);
    if (v)
        *out = yyjson_get_bool(v);
    return 0;
}

static void reader_deinit(struct hf_reader *r) {
    free(r->token);
    for (unsigned k = 0; k < PRETOK_STAGES; k++)
        buf_deinit(&r->cut[k].text);
    buf_deinit(&r->steps);
    buf_deinit(&r->scores);
}

/* A file: its name, its most bytes, and what it may have beside JSON. */
struct file_rule {
    const char *name;
    size_t max;
    yyjson_read_flag flags;
};

/* Parses @text, the contents of a file, which must be an object; *@doc = NULL: there is no such
 * file. */
static int reader_parse(yyjson_doc **doc, struct gguf_str text, const struct file_rule *of,
                        struct err *err) {
    *doc = NULL;
    if (!text.data)
        return 0;
    if (text.len > of->max)
        return err_set(err, 0, NULL, "%s has %zu bytes, more than %zu", of->name, text.len,
                       of->max);
    int r = json_parse(doc, text.data, text.len, of->flags);

    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return err_set(err, 0, NULL, "%s is not a JSON object (%s)", of->name,
                       json_why(text.data, text.len, of->flags).s);
    if (!yyjson_is_obj(yyjson_doc_get_root(*doc)))
        return err_set(err, 0, NULL, "%s is not a JSON object", of->name);
    return 0;
}

static int reader_run(struct hf_reader *r, const struct hf_tokenizer_files *in) {
    if (!in->tokenizer.data) {
        TRY(hf_write_sentencepiece(r, in->sentencepiece));
        return hf_write_templates(r, in->chat_template);
    }
    TRY(hf_read_model(r));
    TRY(hf_read_added(r));
    TRY(hf_read_normalizer(r));
    TRY(hf_read_pre_tokenizer(r));
    TRY(hf_read_decoder(r));
    TRY(hf_read_post_processor(r));
    TRY(hf_write_model(r));
    TRY(hf_write_rules(r));
    TRY(hf_write_specials(r));
    return hf_write_templates(r, in->chat_template);
}

/* Files in the order of hf_tokenizer_keys(). */
static const struct file_rule file_rules[] = {
    {"tokenizer.json", HF_TOKENIZER_FILE_MAX, 0},
    {"tokenizer_config.json", SMALL_FILE_MAX, YYJSON_READ_ALLOW_INF_AND_NAN},
    {"special_tokens_map.json", SMALL_FILE_MAX, 0},
    {"generation_config.json", SMALL_FILE_MAX, YYJSON_READ_ALLOW_INF_AND_NAN},
    {"config.json", SMALL_FILE_MAX, YYJSON_READ_ALLOW_INF_AND_NAN},
    {"added_tokens.json", SMALL_FILE_MAX, 0},
};

int hf_tokenizer_keys(const struct hf_tokenizer_files *in, struct gguf_keys *out, struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *tokenizer = NULL;
    CLEANUP(json_doc_freep) yyjson_doc *config = NULL;
    CLEANUP(json_doc_freep) yyjson_doc *map = NULL;
    CLEANUP(json_doc_freep) yyjson_doc *generation = NULL;
    CLEANUP(json_doc_freep) yyjson_doc *model = NULL;
    CLEANUP(json_doc_freep) yyjson_doc *added = NULL;
    CLEANUP(reader_deinit) struct hf_reader r = {.lead = -1, .tail = -1, .out = out, .err = err};

    if (!in->tokenizer.data && !in->sentencepiece.data)
        return err_set(err, 0, NULL, "tokenizer.json is missing, and so is tokenizer.model");
    if (!in->tokenizer.data && in->sentencepiece.len > HF_TOKENIZER_FILE_MAX)
        return err_set(err, 0, NULL, "tokenizer.model has %zu bytes, more than %u",
                       in->sentencepiece.len, HF_TOKENIZER_FILE_MAX);
    TRY(reader_parse(&tokenizer, in->tokenizer, &file_rules[0], err));
    TRY(reader_parse(&config, in->tokenizer_config, &file_rules[1], err));
    TRY(reader_parse(&map, in->special_tokens_map, &file_rules[2], err));
    TRY(reader_parse(&generation, in->generation_config, &file_rules[3], err));
    TRY(reader_parse(&model, in->config, &file_rules[4], err));
    TRY(reader_parse(&added, in->added_tokens, &file_rules[5], err));
    r.root = yyjson_doc_get_root(tokenizer);
    r.config = yyjson_doc_get_root(config);
    r.map = yyjson_doc_get_root(map);
    r.generation = yyjson_doc_get_root(generation);
    r.model_config = yyjson_doc_get_root(model);
    r.added = yyjson_doc_get_root(added);
    r.n_limit = in->n_vocab;
    buf_init(&r.steps, HF_TOKENIZER_FILE_MAX);
    buf_init(&r.scores, HF_TOKENIZER_FILE_MAX);
    int status = reader_run(&r, in);

    if (status == -EMSGSIZE)
        return hf_fail(&r, "tokens and merges need more than 32 MiB as keys of a GGUF file");
    return status;
}
