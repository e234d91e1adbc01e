#include "api/generation/variants.h"

#include <errno.h>
#include <string.h>

#include "api/generation/prompt.h"
#include "base/try.h"

#define VARIANTS_TEXT (32u << 20) /* limit of the prompts made of one chat, in bytes together */

/* Copies the ranges of the rendered text to @out as they are after @more bytes were inserted at
 * byte @at: ranges behind it move, and a range around it grows. */
static void shift_ranges(const struct rendered *from, size_t at, size_t more,
                         struct text_range *out) {
    for (size_t k = 0; k < from->n_user; k++) {
        out[k] = from->user[k];
        out[k].begin += out[k].begin > at ? more : 0;
        out[k].end += out[k].end > at ? more : 0;
    }
}

/* Makes prompt @i of the rendered text, with its variant in place of the marker at byte @at. */
static int make_variant(struct prompt_job *job, uint32_t i, size_t at) {
    const struct rendered *from = &job->rendered;
    const struct str *v = &job->request.made.variants[i];
    size_t n_marker = strlen(job->request.made.marker), rest = from->text.len - at - n_marker;
    size_t len = at + v->len + rest;
    char *text = arena_alloc(&job->request.arena, len + 1);
    struct text_range *user =
        arena_alloc_array(&job->request.arena, from->n_user + 1, sizeof(*user));

    if (!text || !user)
        return -ENOMEM;
    memcpy(text, from->text.data, at);
    memcpy(text + at, v->data, v->len);
    memcpy(text + at + v->len, from->text.data + at + n_marker, rest);
    shift_ranges(from, at, v->len - n_marker, user); /* wraps around where the text shrinks */
    job->prompts[i] =
        (struct prompt){.text = text, .len = len, .user = user, .n_user = from->n_user};
    return 0;
}

/* Returns the first @marker in @text from byte @from on, or NULL. A prompt may have bytes 0. */
static const char *variants_find_marker(const struct buf *text, const char *marker, size_t from) {
    if (from >= text->len)
        return NULL;
    return memmem(text->data + from, text->len - from, marker, strlen(marker));
}

int variants_spread(struct prompt_job *job, size_t quick) {
    const struct gen_request *r = &job->request;
    const struct buf *text = &job->rendered.text;
    const char *marker = variants_find_marker(text, r->made.marker, 0);
    uint64_t all = (uint64_t)text->len * r->made.n_variants;

    if (!marker)
        return err_set_code(&job->err, 400, "template_error", "model",
                            "The chat template of the model does not repeat messages as they are, "
                            "so it cannot ask questions. Use another model.");
    size_t at = (size_t)(marker - text->data);
    if (variants_find_marker(text, r->made.marker, at + 1))
        return err_set_code(&job->err, 400, "invalid_value", "messages",
                            "The text contains %s, which marks the place of the questions. Remove "
                            "it.",
                            r->made.marker);
    if (all > VARIANTS_TEXT)
        return err_set_code(&job->err, 400, "context_length_exceeded", "messages",
                            "The text is too long for %u questions. Ask fewer at once.",
                            r->made.n_variants);
    if (job->quick && all > quick)
        return -EAGAIN;
    job->prompts =
        arena_alloc_array(&job->request.arena, r->made.n_variants, sizeof(*job->prompts));
    if (!job->prompts)
        return -ENOMEM;
    job->n_prompts = r->made.n_variants;
    for (uint32_t i = 0; i < r->made.n_variants; i++)
        TRY(make_variant(job, i, at));
    return 0;
}
