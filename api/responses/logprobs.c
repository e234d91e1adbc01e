/*
 * The parser holds text back while it may begin a marker, so the content that a token releases may
 * be that of several tokens. They are found from the end of the content backwards: a token whose
 * whole text stands there is one of them, and the first token of which that is not true has the
 * rest. Tokens of markers and of reasoning release nothing and get no entry.
 */

#include "api/responses/logprobs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/gen.h"
#include "api/openai/choices.h"
#include "base/try.h"

#define SEAL_FROM (64u << 10) /* bytes of a blob */

void logprobs_init(struct logprobs *l) {
    *l = (struct logprobs){.json = {.max = API_SEND_MAX}};
}

void logprobs_deinit(struct logprobs *l) {
    buf_deinit(&l->json);
    splices_deinit(&l->sealed);
    free(l->entry);
    *l = (struct logprobs){0};
}

static size_t logprobs_begin(const struct gen *g, uint32_t i) {
    if (!i)
        return 0;
    return g->text_end[i - 1];
}

int logprobs_seal(struct logprobs *l) {
    struct blob *b;

    if (l->json.len == 0)
        return 0;
    if (!(b = blob_new(&l->json)))
        return -ENOMEM;
    int r = splices_add(&l->sealed, b, 0, b->text.len, l->sealed.len);
    blob_unref(b);
    return r;
}

size_t logprobs_bytes(const struct logprobs *l) {
    return l->sealed.len + l->json.cap + l->cap * sizeof(*l->entry);
}

static int add_entry(struct logprobs *l, const struct writer *w, const struct gen *g, uint32_t i,
                     size_t end) {
    struct json j = {.out = &l->json};

    if (!ARRAY_GROW(l->entry, l->n, l->cap, 64))
        return -ENOMEM;
    j.comma = l->n > 0;
    choices_put_logprob(&j, w, g, i, false);
    l->entry[l->n++] = (struct logprob_entry){end, l->sealed.len + l->json.len};
    if (j.error == 0 && l->json.len >= SEAL_FROM)
        j.error = logprobs_seal(l);
    return j.error;
}

/* Returns the first token that has a part of the content [told, @end), which token @i released;
 * i + 1: none has. */
static uint32_t logprobs_first(const struct logprobs *l, const struct gen *g, uint32_t i,
                               size_t end) {
    const char *content = g->output->text[OUTPUT_CONTENT].data;

    for (uint32_t k = i + 1; k-- > l->next;) {
        size_t from = logprobs_begin(g, k), len = g->text_end[k] - from;

        if (len == 0)
            continue;
        if (len >= end - l->told || memcmp(content + end - len, g->text.data + from, len) != 0)
            return k;
        end -= len;
    }
    return MIN(l->next, i + 1);
}

/* Adds entries for the content up to @end, which token @i has released. */
static int logprobs_release(struct logprobs *l, const struct writer *w, const struct gen *g,
                            uint32_t i, size_t end) {
    uint32_t first = logprobs_first(l, g, i, end);
    int r = 0;

    assert(end > l->told && i < g->n_counted);
    for (uint32_t k = first; k <= i && r == 0; k++) {
        size_t behind = g->text_end[i] - g->text_end[k]; /* rest of the text, in later tokens */

        if (g->text_end[k] > logprobs_begin(g, k))
            r = add_entry(l, w, g, k, end - MIN(behind, end - l->told));
    }
    l->told = end;
    l->next = MAX(l->next, i + 1);
    return r;
}

int logprobs_update(struct logprobs *l, const struct writer *w, const struct gen *g, size_t end) {
    assert(g->output);
    if (!g->content_end || !g->logprobs)
        return 0;
    for (; l->seen < g->n_counted && l->told < end; l->seen++)
        if (g->content_end[l->seen] > l->told)
            TRY(logprobs_release(l, w, g, l->seen, g->content_end[l->seen]));
    size_t all = g->output->text[OUTPUT_CONTENT].len;
    if (g->output->finished && l->seen == g->n_counted && l->seen > 0 && l->told < MIN(all, end))
        TRY(logprobs_release(l, w, g, g->n_counted - 1, all));
    return 0;
}

uint32_t logprobs_until(const struct logprobs *l, size_t end) {
    uint32_t low = 0, high = l->n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (l->entry[middle].end <= end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Writes bytes [@from, @to) of the text. */
static void logprobs_put_text(struct json *j, const struct logprobs *l, size_t from, size_t to) {
    for (uint32_t i = 0; i < l->sealed.n; i++) {
        const struct splice *p = &l->sealed.part[i];
        size_t begin = MAX(from, p->at), end = MIN(to, p->at + p->len);

        if (begin < end)
            json_refer(j, p->blob, begin - p->at, end - begin);
    }
    if (to > l->sealed.len) {
        from = MAX(from, l->sealed.len);
        j->comma = false; /* the text has its own */
        json_valid(j, l->json.data + from - l->sealed.len, to - from);
    }
}

void logprobs_put(struct json *j, const struct logprobs *l, uint32_t from, uint32_t to) {
    assert(to <= l->n);
    json_print(j, "logprobs:[");
    if (from < to) /* from behind the comma */
        logprobs_put_text(j, l, from ? l->entry[from - 1].at + 1 : 0, l->entry[to - 1].at);
    json_close(j, ']');
}
