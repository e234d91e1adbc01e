/*
 * late - added tokens that are searched in normalised text, as Hugging Face's library does with
 * those that have `normalized`: the others are found in the raw text first; each text between them
 * is normalised and searched for the texts that these become by the same steps.
 *
 * A text that users have written in parts is normalised by parts, so that what a user writes cannot
 * change a token beside it, and each byte of the result is known as the user's or not.
 */

#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "text/tokenizer_private.h"

#define LATE_TEXTS_MAX (16u << 20) /* most bytes of all texts */

static bool late_has(const struct tokenizer *t, uint32_t id) {
    return t->flags && t->flags[id] & TOKEN_NORMALIZED && vocab_is_marker(&t->vocab, id);
}

/* Normalises @s as @t does before it cuts, as steps_run(). */
static int late_prepare(const struct tokenizer *t, struct gguf_str s, unsigned place, struct buf *a,
                        struct buf *b, struct gguf_str *out) {
    if (t->kind != KIND_PIECES)
        return steps_run(&t->steps, STEPS_NORMALIZE, s, place, a, b, out);
    buf_clear(a);
    TRY(wordpiece_normalise(t, s, a));
    *out = (struct gguf_str){a->len ? a->data : "", a->len};
    return 0;
}

/* Adds token @id of @t, whose text becomes @text. */
static int late_add(struct late *l, const struct tokenizer *t, uint32_t id, struct gguf_str text) {
    TRY(buf_add(&l->vocab.text, text.data, text.len));
    l->id[l->n] = id;
    l->vocab.type[l->n] = t->vocab.type[id];
    l->vocab.text_at[++l->n] = (uint32_t)l->vocab.text.len;
    return 0;
}

static int late_add_all(struct tokenizer *t, struct err *err) {
    CLEANUP(buf_deinit) struct buf a = {.max = LATE_TEXTS_MAX};
    CLEANUP(buf_deinit) struct buf b = {.max = LATE_TEXTS_MAX};

    for (uint32_t id = 0; id < t->vocab.n; id++) {
        uint32_t len;
        const char *text = vocab_text(&t->vocab, id, &len);
        struct gguf_str s = {text, len};

        if (!late_has(t, id))
            continue;
        TRY(late_prepare(t, s, STEPS_FIRST, &a, &b, &s));
        if (s.len == 0)
            return err_set(err, 0, NULL,
                           "tokenizer.json: added token %u is empty when it is normalized", id);
        TRY(late_add(&t->late, t, id, s));
    }
    return 0;
}

int late_load(struct tokenizer *t, struct err *err) {
    struct late *l = &t->late;
    uint32_t n = 0;

    for (uint32_t id = 0; id < t->vocab.n; id++)
        n += late_has(t, id);
    if (n == 0)
        return 0;
    buf_init(&l->vocab.text, LATE_TEXTS_MAX);
    l->id = calloc(n, sizeof(*l->id));
    l->vocab.type = calloc(n, 1);
    l->vocab.text_at = calloc(n + 1, sizeof(*l->vocab.text_at));
    if (!l->id || !l->vocab.type || !l->vocab.text_at)
        return -ENOMEM;
    int r = late_add_all(t, err);
    if (r == -EMSGSIZE)
        return err_set(err, 0, NULL,
                       "tokenizer.json: added_tokens have more than 16 MiB of normalized text");
    TRY(r);
    l->vocab.n = l->n;
    TRY(markers_init(&l->markers, &l->vocab, NULL));
    if (l->markers.n < l->n)
        return err_set(
            err, 0, NULL,
            "tokenizer.json: two of added_tokens have one text when they are normalized");
    return markers_init(&l->early, &t->vocab, t->flags);
}

void late_deinit(struct late *l) {
    vocab_deinit(&l->vocab);
    free(l->markers.id);
    free(l->early.id);
    free(l->id);
}

void late_text_deinit(struct late_text *l) {
    buf_deinit(&l->text);
    buf_deinit(&l->a);
    buf_deinit(&l->b);
    free(l->user);
}

/* Appends what the part @s becomes. */
static int late_add_part(struct late_text *out, const struct tokenizer *t, struct gguf_str s,
                         unsigned place, bool user) {
    size_t before = out->text.len;

    TRY(late_prepare(t, s, place, &out->a, &out->b, &s));
    TRY(buf_add(&out->text, s.data, s.len));
    if (!user || s.len == 0)
        return 0;
    if (!ARRAY_GROW(out->user, out->n_user, out->cap, 8))
        return -ENOMEM;
    out->user[out->n_user++] = (struct text_range){before, out->text.len};
    return 0;
}

int late_normalise(struct late_text *out, const struct tokenizer *t, const char *text, size_t from,
                   size_t end, const struct text_range *user, size_t n_user) {
    buf_init(&out->text, SIZE_MAX / 2);
    buf_init(&out->a, SIZE_MAX / 2);
    buf_init(&out->b, SIZE_MAX / 2);
    for (size_t at = from, stop; at < end; at = stop) {
        unsigned place = 0;

        for (; n_user && user->end <= at; n_user--)
            user++;
        bool inside = n_user && user->begin <= at;
        stop = end;
        if (inside)
            stop = MIN(end, user->end);
        else if (n_user)
            stop = MIN(end, user->begin);
        if (at > from)
            place |= STEPS_BEHIND;
        if (stop < end)
            place |= STEPS_BEFORE;
        struct gguf_str part = {text + at, stop - at};
        TRY(late_add_part(out, t, part, place, inside));
    }
    return 0;
}
