/*
 * forced - drafts the bytes that a constraint forces (the name of a property, the frame of a tool
 * call). The text is known, but not its division into tokens. The model nearly always divides it as
 * the tokenizer does; its last token may be longer and include the following bytes.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/constraint.h"
#include "scheduler/draft/draft.h"
#include "text/tokenizer.h"

#define BYTES_MAX 128u

struct forced {
    /* bytes of LEAD before the text; 0: not needed */
    size_t n_lead;
};

/* Prefix of the text, for tokenizers that would add a space to its beginning. */
#define LEAD "\n"

static int forced_begin(void **state, void *common, const struct draft_text *t) {
    struct tokens ids = {0};
    struct forced *f;
    size_t len = 0;

    (void)common;
    if (!t->matcher || !t->tokenizer)
        return 0;
    f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    if (tokenizer_encode(t->tokenizer, "{", 1, 0, NULL, 0, &ids) == 0 && ids.n > 0 &&
        *tokenizer_piece(t->tokenizer, ids.id[0], false, &len) == ' ')
        f->n_lead = 1 + strlen(LEAD);
    tokens_deinit(&ids);
    *state = f;
    return 0;
}

/* Writes the tokens of @text, without LEAD, to @out. Returns their number; 0 also if a token has
 * bytes of both. */
static uint32_t forced_cut(const struct forced *f, const struct tokenizer *t, const char *text,
                           size_t len, int32_t *out, uint32_t max) {
    struct tokens ids = {0};
    size_t n_lead = 0, i = 0;
    uint32_t n = 0;

    if (tokenizer_encode(t, text, len, 0, NULL, 0, &ids) == 0) {
        for (; i < ids.n && n_lead < f->n_lead; i++) {
            size_t bytes;

            tokenizer_piece(t, ids.id[i], false, &bytes);
            n_lead += bytes;
        }
        for (; i < ids.n && n < max && n_lead == f->n_lead; i++)
            out[n++] = ids.id[i];
    }
    tokens_deinit(&ids);
    return n;
}

static uint32_t forced_propose(void *state, const struct draft_text *t, int32_t *out,
                               uint32_t max) {
    const struct forced *f = state;
    char text[sizeof(LEAD) + BYTES_MAX] = LEAD;
    size_t lead = f->n_lead > 0 ? strlen(LEAD) : 0;
    int32_t special;
    size_t len = constraint_forced(t->matcher, (uint8_t *)text + lead, BYTES_MAX, &special);
    uint32_t n = len > 0 ? forced_cut(f, t->tokenizer, text, lead + len, out, max) : 0;

    if (len == BYTES_MAX && n > 0 && n < max)
        n--; /* the text continues, and the last token may be longer then */
    if (special >= 0 && n < max && (n > 0 || len == 0))
        out[n++] = special;
    return n;
}

const struct draft_source draft_forced = {
    .name = "forced",
    .prior = 0.9F,
    .begin = forced_begin,
    .end = free,
    .propose = forced_propose,
};
