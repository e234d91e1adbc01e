/* Readers of fields that restrict which tokens the model may write. The worker gets them as lists
 * of token ids (struct submit). */

#include <errno.h>
#include <string.h>

#include "api/generation/fields.h"
#include "api/generation/model.h"
#include "api/generation/read_request.h"
#include "base/json_read.h"
#include "base/result.h"
#include "base/try.h"

#define WORD_MAX 256u   /* bytes */
#define BREAKER_MAX 64u /* bytes */
#define BREAKERS 16u

READER(field_allowed) {
    int32_t *ids;
    uint32_t n;

    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > m->info->n_vocab)
        return field_refuse(f, err);
    TRY(gen_request_ids(r, m, v, f->name, &ids, &n, err));
    r->submit.allowed = (struct str){(const char *)ids, n * (uint32_t)sizeof(*ids)};
    return 0;
}

static int add_word(struct buf *list, const struct tokens *t) {
    int32_t n = (int32_t)t->n;

    TRY(buf_add(list, &n, sizeof(n)));
    return buf_add(list, t->id, t->n * sizeof(*t->id));
}

/* Adds the token ids of @word. Adds also those of the word behind a space if they are as many and
 * begin with another token, because vLLM reads a word in this way. */
static int add_forms(struct buf *list, const struct model *m, const char *word, size_t len) {
    CLEANUP(tokens_deinit) struct tokens plain = {.max = 4 * WORD_MAX};
    CLEANUP(tokens_deinit) struct tokens spaced = {.max = 4 * WORD_MAX};
    char text[WORD_MAX + 1] = " ";

    while (len && (*word == ' ' || (*word >= '\t' && *word <= '\r')))
        word++, len--;
    memcpy(text + 1, word, len);
    TRY(tokenizer_encode(m->info->tokenizer, word, len, 0, NULL, 0, &plain));
    TRY(tokenizer_encode(m->info->tokenizer, text, len + 1, 0, NULL, 0, &spaced));
    if (plain.n == 0)
        return -EINVAL;
    TRY(add_word(list, &plain));
    if (spaced.n != plain.n || spaced.id[0] == plain.id[0])
        return 0;
    return add_word(list, &spaced);
}

READER(field_bad_words) {
    CLEANUP(buf_deinit) struct buf list = {.max = 1 << 20};
    int result = 0;

    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > f->hi)
        return field_refuse(f, err);
    JSON_EACH(word, v) {
        if (!yyjson_is_str(word) || json_len(word) > WORD_MAX)
            return field_refuse(f, err);
        result = add_forms(&list, m, json_text(word), json_len(word));
        if (result < 0) {
            if (result != -ENOMEM)
                return field_refuse(f, err);
            return result;
        }
    }
    if (list.len == 0)
        return 0;
    r->submit.bad_words =
        (struct str){arena_strndup(&r->arena, list.data, list.len), (uint32_t)list.len};
    return enomem_unless(r->submit.bad_words.data);
}

READER(field_breakers) {
    if (!yyjson_is_arr(v))
        return field_refuse(f, err);
    JSON_EACH(text, v) {
        if (!yyjson_is_str(text) || !json_len(text) || json_len(text) > BREAKER_MAX)
            return field_refuse(f, err);
    }
    return field_array(r, m, f, v, err);
}

static bool has_breaker(const char *piece, size_t len, const struct str *text, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (memmem(piece, len, text[i].data, text[i].len))
            return true;
    return false;
}

/* Adds the last token of a breaker: a breaker of several tokens is recognised by its last one. */
static int add_last(struct buf *ids, const struct model *m, const struct str *text) {
    CLEANUP(tokens_deinit) struct tokens t = {.max = 4 * BREAKER_MAX};

    TRY(tokenizer_encode(m->info->tokenizer, text->data, text->len, 0, NULL, 0, &t));
    if (t.n <= 0)
        return 0;
    return buf_add(ids, &t.id[t.n - 1], sizeof(*t.id));
}

int fields_find_breakers(struct gen_request *r, const struct model *m) {
    CLEANUP(buf_deinit) struct buf ids = {.max = UINT32_MAX};
    struct str text[BREAKERS] = {{"\n", 1}, {":", 1}, {"\"", 1}, {"*", 1}};
    uint32_t n_texts = r->input.breakers ? 0 : 4;

    JSON_EACH(v, r->input.breakers) {
        text[n_texts++] = (struct str){json_text(v), (uint32_t)json_len(v)};
    }
    for (int32_t id = 0; (uint32_t)id < m->info->n_vocab; id++) {
        size_t len;
        const char *piece = tokenizer_piece(m->info->tokenizer, id, true, &len);

        if (has_breaker(piece, len, text, n_texts))
            TRY(buf_add(&ids, &id, sizeof(id)));
    }
    for (uint32_t k = 0; k < n_texts; k++)
        TRY(add_last(&ids, m, &text[k]));
    if (ids.len == 0)
        return 0;
    r->submit.breakers =
        (struct str){arena_strndup(&r->arena, ids.data, ids.len), (uint32_t)ids.len};
    return enomem_unless(r->submit.breakers.data);
}
