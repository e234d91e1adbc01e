/* hf_model - reads the vocabulary of tokenizer.json (model, added_tokens) and writes it as keys. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "text/hf_tokenizer_private.h"

#define HF_IDS_MAX (1u << 21) /* the largest vocabularies have some 300,000 tokens */

int hf_set_token(struct hf_reader *r, uint64_t id, struct gguf_str text, uint8_t type,
                 bool *entered) {
    *entered = false;
    if (r->n_limit && id >= r->n_limit)
        return 0;
    if (id >= HF_IDS_MAX)
        return hf_fail(r, "id %llu is larger than %u", (unsigned long long)id, HF_IDS_MAX - 1);
    if (id >= r->cap) {
        uint32_t cap = MAX((uint32_t)id + 1, 2 * r->cap);

        if (!array_resize(&r->token, cap, sizeof(*r->token)))
            return -ENOMEM;
        memset(r->token + r->cap, 0, (cap - r->cap) * sizeof(*r->token));
        r->cap = cap;
    }
    r->token[id] = (struct hf_token){.text = text, .type = type};
    r->n = MAX(r->n, (uint32_t)id + 1);
    *entered = true;
    return 0;
}

static bool hf_is_set(const struct hf_reader *r, uint64_t id) {
    return id < r->n && r->token[id].type != TOKEN_UNDEFINED;
}

bool hf_has_other_text(const struct hf_reader *r, uint64_t id, struct gguf_str text) {
    if (!hf_is_set(r, id))
        return false;
    const struct gguf_str own = r->token[id].text;
    return own.len != text.len || memcmp(own.data, text.data, text.len) != 0;
}

int32_t hf_find(const struct hf_reader *r, struct gguf_str s) {
    for (uint32_t id = 0; s.data && id < r->n; id++) {
        const struct hf_token *t = &r->token[id];

        if (t->type != TOKEN_UNDEFINED && t->text.len == s.len &&
            memcmp(t->text.data, s.data, s.len) == 0)
            return (int32_t)id;
    }
    return -1;
}

/* Returns whether @s is "<0xXX>", the token of a byte. */
static bool hf_is_byte(struct gguf_str s) {
    return s.len == 6 && memcmp(s.data, "<0x", 3) == 0 && s.data[5] == '>' &&
           hex_digit(s.data[3]) >= 0 && hex_digit(s.data[4]) >= 0;
}

static int hf_add_entry(struct hf_reader *r, struct gguf_str text, uint64_t id) {
    uint8_t type = r->byte_fallback && hf_is_byte(text) ? TOKEN_BYTE : TOKEN_NORMAL;
    bool entered;

    if (hf_is_set(r, id))
        return hf_fail(r, "model.vocab gives the id %llu to two texts", (unsigned long long)id);
    return hf_set_token(r, id, text, type, &entered);
}

/* Reads an object of texts and ids. */
static int hf_read_ids(struct hf_reader *r, yyjson_val *vocab) {
    if (!yyjson_is_obj(vocab))
        return hf_fail(r, "model.vocab is not an object");
    JSON_MEMBERS(key, value, vocab) {
        if (!yyjson_is_uint(value))
            return hf_fail(r, "model.vocab: the id of \"%s\" is not a number", hf_show(key).s);
        TRY(hf_add_entry(r, hf_str(key), yyjson_get_uint(value)));
    }
    return 0;
}

/* Reads an array of texts with their scores. */
static int hf_read_scores(struct hf_reader *r, yyjson_val *vocab) {
    if (!yyjson_is_arr(vocab))
        return hf_fail(r, "model.vocab is not an array");
    JSON_EACH_AT(i, item, vocab) {
        yyjson_val *text = yyjson_arr_get_first(item), *score = yyjson_arr_get_last(item);

        if (yyjson_arr_size(item) != 2 || !yyjson_is_str(text) || !yyjson_is_num(score))
            return hf_fail(r, "model.vocab[%zu] is not a text and a score", i);
        TRY(hf_add_entry(r, hf_str(text), i));
    }
    return 0;
}

/* Refuses member @key of model unless it is missing, null, "" or 0. */
static int hf_expect_none(struct hf_reader *r, yyjson_val *model, const char *key) {
    yyjson_val *v = json_given(model, key);

    if (!v || (yyjson_is_str(v) && json_len(v) == 0) ||
        (yyjson_is_num(v) && yyjson_get_num(v) == 0))
        return 0;
    return hf_fail(r, "model.%s is not supported", key);
}

static int hf_read_bpe(struct hf_reader *r, yyjson_val *model) {
    r->kind = KIND_CHARS;
    TRY(hf_expect_none(r, model, "dropout"));
    TRY(hf_expect_none(r, model, "continuing_subword_prefix"));
    TRY(hf_expect_none(r, model, "end_of_word_suffix"));
    TRY(hf_bool(r, model, "model", "byte_fallback", &r->byte_fallback));
    TRY(hf_bool(r, model, "model", "ignore_merges", &r->whole_words));
    TRY(hf_bool(r, model, "model", "fuse_unk", &r->fuse_unk));
    r->unk = hf_str(json_given(model, "unk_token"));
    return hf_read_ids(r, yyjson_obj_get(model, "vocab"));
}

static int hf_read_wordpiece(struct hf_reader *r, yyjson_val *model) {
    yyjson_val *most = json_given(model, "max_input_chars_per_word");
    yyjson_val *prefix = json_given(model, "continuing_subword_prefix");

    r->kind = KIND_PIECES;
    if (most && yyjson_get_uint(most) != 100)
        return hf_fail(r, "model.max_input_chars_per_word is not 100");
    if (prefix && !hf_same(hf_str(prefix), "##"))
        return hf_fail(r, "model.continuing_subword_prefix is not \"##\"");
    r->unk = hf_str(json_given(model, "unk_token"));
    return hf_read_ids(r, yyjson_obj_get(model, "vocab"));
}

static int hf_read_unigram(struct hf_reader *r, yyjson_val *model) {
    yyjson_val *unk = json_given(model, "unk_id");

    r->kind = KIND_UNIGRAM;
    TRY(hf_bool(r, model, "model", "byte_fallback", &r->byte_fallback));
    if (r->byte_fallback)
        return hf_fail(r, "model.byte_fallback is not supported for Unigram");
    TRY(hf_read_scores(r, yyjson_obj_get(model, "vocab")));
    if (unk && (!yyjson_is_uint(unk) || !hf_is_set(r, yyjson_get_uint(unk))))
        return hf_fail(r, "model.unk_id is not the number of an entry");
    if (unk)
        r->unk = r->token[yyjson_get_uint(unk)].text;
    return 0;
}

int hf_read_model(struct hf_reader *r) {
    yyjson_val *model = yyjson_obj_get(r->root, "model"), *type = yyjson_obj_get(model, "type");

    /* Files of early versions have no type; a list of merges is BPE's. */
    if (json_is(type, "BPE") || (!type && yyjson_obj_get(model, "merges")))
        TRY(hf_read_bpe(r, model));
    else if (json_is(type, "WordPiece"))
        TRY(hf_read_wordpiece(r, model));
    else if (json_is(type, "Unigram"))
        TRY(hf_read_unigram(r, model));
    else
        return hf_fail(r, "model.type is %s; supported are BPE, Unigram and WordPiece",
                       hf_show(type).s);
    if (r->n == 0)
        return hf_fail(r, "model.vocab is empty");
    return 0;
}

/* Texts of model.vocab in order, with their ids. */
struct hf_known {
    struct hf_text {
        struct gguf_str text;
        uint32_t id;
    } * entry;
    uint32_t n;
};

static void hf_known_deinit(struct hf_known *k) {
    free(k->entry);
}

/* Compares by text alone. */
static int hf_by_text(const void *a, const void *b) {
    const struct gguf_str *x = &((const struct hf_text *)a)->text;
    const struct gguf_str *y = &((const struct hf_text *)b)->text;
    size_t n = MIN(x->len, y->len);
    int order = n ? memcmp(x->data, y->data, n) : 0;

    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static int hf_known_init(struct hf_known *k, const struct hf_reader *r) {
    *k = (struct hf_known){.entry = calloc(r->n + 1, sizeof(*k->entry))};
    if (!k->entry)
        return -ENOMEM;
    for (uint32_t id = 0; id < r->n; id++)
        if (hf_is_set(r, id))
            k->entry[k->n++] = (struct hf_text){r->token[id].text, id};
    qsort(k->entry, k->n, sizeof(*k->entry), hf_by_text);
    return 0;
}

/* Returns the id of an added token: the one that model.vocab has for its text, as in Hugging Face's
 * library, or else @given. */
static uint64_t hf_known_id(const struct hf_known *k, struct gguf_str text, uint64_t given) {
    const struct hf_text key = {text, 0};
    const struct hf_text *found = bsearch(&key, k->entry, k->n, sizeof(key), hf_by_text);

    return found ? found->id : given;
}

static int hf_read_one_added(struct hf_reader *r, const struct hf_known *known, yyjson_val *item,
                             size_t i) {
    yyjson_val *id = yyjson_obj_get(item, "id");
    struct gguf_str text = hf_str(yyjson_obj_get(item, "content"));
    bool special = false, left = false, right = false, single = false, normalized = true, entered;
    char where[40];

    snprintf(where, sizeof(where), "added_tokens[%zu]", i);
    if (!yyjson_is_uint(id) || !text.data || text.len == 0)
        return hf_fail(r, "%s has no id or no content", where);
    TRY(hf_bool(r, item, where, "special", &special));
    TRY(hf_bool(r, item, where, "lstrip", &left));
    TRY(hf_bool(r, item, where, "rstrip", &right));
    TRY(hf_bool(r, item, where, "single_word", &single));
    TRY(hf_bool(r, item, where, "normalized", &normalized));
    uint64_t n = hf_known_id(known, text, yyjson_get_uint(id));

    if (hf_has_other_text(r, n, text))
        return hf_fail(r, "%s has the id %llu of another token", where, (unsigned long long)n);
    bool spaces = pretok_run(text.data, text.len, UC_SPACE, SIZE_MAX) == text.len;
    bool own = !hf_is_set(r, n);

    if (single && (spaces || !own))
        return hf_fail(r,
                       "%s: single_word is not supported for white space and for tokens of "
                       "model.vocab",
                       where);
    TRY(hf_set_token(r, n, text, special ? TOKEN_CONTROL : TOKEN_USER, &entered));
    if (!entered)
        return 0;
    if (left)
        r->token[n].flags |= TOKEN_LSTRIP;
    if (right)
        r->token[n].flags |= TOKEN_RSTRIP;
    if (single)
        r->token[n].flags |= TOKEN_SINGLE_WORD;
    if (normalized)
        r->token[n].flags |= TOKEN_NORMALIZED;
    if (spaces && own && r->kind == KIND_UNIGRAM)
        r->token[n].flags |= TOKEN_ADDED;
    return 0;
}

int hf_read_added(struct hf_reader *r) {
    yyjson_val *added = json_given(r->root, "added_tokens");
    CLEANUP(hf_known_deinit) struct hf_known known = {0};

    if (added && !yyjson_is_arr(added))
        return hf_fail(r, "added_tokens is not an array");
    TRY(hf_known_init(&known, r));
    JSON_EACH_AT(i, item, added) {
        TRY(hf_read_one_added(r, &known, item, i));
    }
    return 0;
}

/* Writes the text of a token. GGUF marks the beginnings of words of WordPiece, the file the other
 * pieces. */
static int hf_write_text(struct hf_reader *r, const struct hf_token *t) {
    char text[TOKEN_TEXT_MAX];
    const char *from = t->text.data;
    size_t n = t->text.len;

    if (r->kind != KIND_PIECES || t->type != TOKEN_NORMAL)
        return gguf_keys_add_str(r->out, n ? from : "", n);
    if (n > 2 && memcmp(from, "##", 2) == 0)
        return gguf_keys_add_str(r->out, from + 2, n - 2);
    memcpy(text, SPACE_MARK, SPACE_MARK_LEN);
    memcpy(text + SPACE_MARK_LEN, from, n);
    return gguf_keys_add_str(r->out, text, n + SPACE_MARK_LEN);
}

static int hf_write_tokens(struct hf_reader *r, uint32_t n) {
    static const struct hf_token none = {.type = TOKEN_UNUSED};
    uint32_t most = r->kind == KIND_PIECES ? TOKEN_TEXT_MAX - SPACE_MARK_LEN : TOKEN_TEXT_MAX;

    TRY(gguf_keys_array(r->out, "tokenizer.ggml.tokens", GGUF_STRING, n));
    for (uint32_t id = 0; id < n; id++) {
        const struct hf_token *t = hf_is_set(r, id) ? &r->token[id] : &none;

        if (t->text.len > most)
            return hf_fail(r, "token %u has %zu bytes, more than %u", id, t->text.len, most);
        TRY(hf_write_text(r, t));
    }
    TRY(gguf_keys_array(r->out, "tokenizer.ggml.token_type", GGUF_U8, n));
    for (uint32_t id = 0; id < n; id++)
        TRY(gguf_keys_add_u8(r->out, hf_is_set(r, id) ? r->token[id].type : TOKEN_UNUSED));
    return 0;
}

/* Writes a merge as GGUF does, with a space between its parts: the first space behind the first
 * byte. */
static int hf_write_merge(struct hf_reader *r, yyjson_val *merge, size_t i) {
    struct gguf_str left = hf_str(yyjson_arr_get_first(merge));
    struct gguf_str right = hf_str(yyjson_arr_get_last(merge));
    char text[2 * TOKEN_TEXT_MAX + 1];

    if (yyjson_is_str(merge)) {
        struct gguf_str s = hf_str(merge);
        const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;

        if (!space || memchr(space + 1, ' ', s.len - (size_t)(space + 1 - s.data)))
            return hf_fail(r, "model.merges[%zu] has not one space between two parts", i);
        return gguf_keys_add_str(r->out, s.data, s.len);
    }
    if (yyjson_arr_size(merge) != 2 || !left.data || !right.data || left.len == 0)
        return hf_fail(r, "model.merges[%zu] is neither a string nor a pair of strings", i);
    if (left.len > TOKEN_TEXT_MAX || right.len > TOKEN_TEXT_MAX)
        return hf_fail(r, "model.merges[%zu] has a part of more than %u bytes", i, TOKEN_TEXT_MAX);
    if (memchr(left.data + 1, ' ', left.len - 1))
        return hf_fail(r, "model.merges[%zu] has a space inside its first part", i);
    memcpy(text, left.data, left.len);
    text[left.len] = ' ';
    memcpy(text + left.len + 1, right.data, right.len);
    return gguf_keys_add_str(r->out, text, left.len + right.len + 1);
}

static int hf_write_merges(struct hf_reader *r) {
    yyjson_val *merges = yyjson_obj_get(yyjson_obj_get(r->root, "model"), "merges");

    if (!yyjson_is_arr(merges))
        return hf_fail(r, "model.merges is not an array");
    TRY(gguf_keys_array(r->out, "tokenizer.ggml.merges", GGUF_STRING, yyjson_arr_size(merges)));
    JSON_EACH_AT(i, merge, merges) {
        TRY(hf_write_merge(r, merge, i));
    }
    return 0;
}

/* Writes the scores of Unigram or SentencePiece; added tokens, which have none, get 0. */
static int hf_write_scores(struct hf_reader *r, uint32_t n) {
    yyjson_val *vocab = yyjson_obj_get(yyjson_obj_get(r->root, "model"), "vocab");
    uint32_t written = 0;
    float score;

    TRY(gguf_keys_array(r->out, VOCAB_SCORES, GGUF_F32, n));
    for (; written < MIN(n, r->scores.len / sizeof(score)); written++) {
        memcpy(&score, r->scores.data + written * sizeof(score), sizeof(score));
        TRY(gguf_keys_add_f32(r->out, score));
    }
    JSON_EACH(item, vocab) {
        if (written < n)
            TRY(gguf_keys_add_f32(r->out, (float)yyjson_get_num(yyjson_arr_get_last(item))));
        written += written < n;
    }
    while (written++ < n)
        TRY(gguf_keys_add_f32(r->out, 0));
    return 0;
}

int hf_write_model(struct hf_reader *r) {
    static const char *const models[] = {
        [KIND_BYTES] = "gpt2",  [KIND_CHARS] = "gemma4", [KIND_SCORES] = "llama",
        [KIND_PIECES] = "bert", [KIND_UNIGRAM] = "t5",
    };
    const char *model = models[r->kind];
    uint32_t n = MAX(r->n, r->n_limit);

    if (r->unk.data) {
        int32_t id = hf_find(r, r->unk);

        if (id < 0)
            return hf_fail(r, "model.unk_token is no token");
        if (r->token[id].type != TOKEN_NORMAL || r->kind == KIND_UNIGRAM)
            r->token[id].type = TOKEN_UNKNOWN;
    }
    TRY(gguf_keys_string(r->out, "tokenizer.ggml.model", (struct gguf_str){model, strlen(model)}));
    TRY(hf_write_tokens(r, n));
    if (r->kind == KIND_UNIGRAM || r->kind == KIND_SCORES)
        return hf_write_scores(r, n);
    if (r->kind == KIND_PIECES)
        return 0;
    return hf_write_merges(r);
}
