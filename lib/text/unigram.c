/*
 * unigram - SentencePiece's Unigram model, the tokenizer of XLM-RoBERTa and T5 (in files "t5").
 * Text is normalised by the map in the file, and of all ways to cut it into tokens the one with the
 * greatest sum of scores is taken (Viterbi). A character that begins no token is unknown, with a
 * score below all others; neighbouring unknown characters become one token.
 *
 * Of the strings of the map (charsmap.h) the longest that matches is replaced.
 *
 * Sums are computed as SentencePiece does, with a float for each position, so that sums which are
 * equal there are equal here; of equal sums the one with the longest last token wins. Tokens are
 * looked up byte by byte in an array that is sorted by their texts, where tokens with a common
 * beginning are adjacent.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/tokenizer_private.h"

#define UNKNOWN_PENALTY 10.0f
#define PAUSE_CHARS 256u
#define REPLACEMENT "\xEF\xBF\xBD"

/* Best way to position i of a text; it ends with token `id`, which begins at position `from`
 * (UINT32_MAX: there is no way). */
struct step {
    float score;
    uint32_t id, from;
};

/* ---- the file ---- */

int unigram_read_scores(struct tokenizer *t, const struct gguf *g, struct err *err) {
    struct unigram *u = &t->unigram;
    float least = 0;

    TRY(vocab_read_scores(&t->vocab, g, &u->score, err));
    u->sorted = calloc(t->vocab.n, sizeof(*u->sorted));
    if (!u->sorted)
        return -ENOMEM;
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        bool is_text = vocab_is_mergeable(&t->vocab, id) && t->vocab.type[id] != TOKEN_UNUSED &&
                       t->vocab.text_at[id + 1] > t->vocab.text_at[id] &&
                       vocab_is_found(&t->vocab, id);

        if (!isfinite(u->score[id]))
            return err_set(err, 0, NULL, "%s[%u] is not a number", VOCAB_SCORES, id);
        if (!is_text || (t->flags && t->flags[id] & TOKEN_ADDED))
            continue;
        least = u->n_sorted ? fminf(least, u->score[id]) : u->score[id];
        u->sorted[u->n_sorted++] = id;
    }
    u->unknown_score = least - UNKNOWN_PENALTY;
    qsort_r(u->sorted, u->n_sorted, sizeof(*u->sorted), vocab_by_text, &t->vocab);
    return 0;
}

int unigram_load(struct tokenizer *t, const struct gguf *g, struct err *err) {
    TRY(special_ids_load(&t->special, &t->vocab, g, true, err));
    t->special.add_eos |= !gguf_has(g, "tokenizer.ggml.add_eos_token");
    t->space_prefix = t->unigram.squeeze = true;
    TRY(special_read_flag(g, "tokenizer.ggml.add_space_prefix", &t->space_prefix, err));
    TRY(special_read_flag(g, "tokenizer.ggml.remove_extra_whitespaces", &t->unigram.squeeze, err));
    for (uint32_t id = 0; id < t->vocab.n && t->special.unk < 0; id++)
        if (t->vocab.type[id] == TOKEN_UNKNOWN)
            t->special.unk = (int32_t)id;
    TRY(unigram_read_scores(t, g, err));
    if (t->published)
        return 0;
    return charsmap_load(&t->unigram.map, g, err);
}

void unigram_deinit(struct unigram *u) {
    charsmap_deinit(&u->map);
    free(u->score);
    free(u->sorted);
}

/* ---- normalising ---- */

/* Normalizes the beginning of @s to *@out, which lives as long as both. Returns the bytes
 * consumed. */
static size_t normal_prefix(const struct unigram *u, const char *s, size_t len,
                            struct gguf_str *out) {
    uint32_t cp;
    size_t n = charsmap_find(&u->map, s, len, false, out);

    if (n)
        return n;
    n = unicode_decode(s, s + len, &cp);
    *out = (struct gguf_str){.data = s, .len = n};
    if (cp != UNICODE_INVALID)
        return n;
    *out = (struct gguf_str){.data = REPLACEMENT, .len = strlen(REPLACEMENT)};
    return 1;
}

/* Appends @s with spaces as marks. *@after_space: the text so far ends with a space; if @squeeze,
 * further spaces are left out. */
static int add_normal(struct buf *b, struct gguf_str s, bool squeeze, bool *after_space) {
    for (size_t i = 0; i < s.len; i++) {
        bool space = s.data[i] == ' ';

        if (space && *after_space)
            continue;
        if (space)
            TRY(buf_add(b, SPACE_MARK, SPACE_MARK_LEN));
        else
            TRY(buf_add_char(b, s.data[i]));
        *after_space = *after_space && space;
    }
    if (s.len)
        *after_space = squeeze && s.data[s.len - 1] == ' ';
    return 0;
}

static int unigram_normalise(const struct tokenizer *t, const char *s, size_t len,
                             struct buf *out) {
    const struct unigram *u = &t->unigram;
    bool after_space = u->squeeze;
    struct gguf_str part;

    out->len = 0;
    for (size_t i = 0, n; i < len; i += n) {
        n = normal_prefix(u, s + i, len - i, &part);
        if (out->len == 0 && u->squeeze && part.len == 1 && *part.data == ' ')
            continue;
        if (out->len == 0 && t->space_prefix)
            TRY(buf_add(out, SPACE_MARK, SPACE_MARK_LEN));
        TRY(add_normal(out, part, u->squeeze, &after_space));
    }
    while (u->squeeze && out->len >= SPACE_MARK_LEN &&
           is_space_mark(out->data + out->len - SPACE_MARK_LEN, SPACE_MARK_LEN))
        out->len -= SPACE_MARK_LEN;
    return 0;
}

/* ---- the best cut ---- */

/* Narrows the tokens of @w to those with its next byte. */
static void unigram_narrow(const struct tokenizer *t, struct unigram_walk *w) {
    const uint32_t *sorted = t->unigram.sorted;
    uint8_t c = (uint8_t)w->s[w->depth];

    for (unsigned side = 0; side < 2; side++) {
        uint32_t a = w->lo, b = w->hi;

        while (a < b) {
            uint32_t mid = a + (b - a) / 2, n;
            const char *s = vocab_text(&t->vocab, sorted[mid], &n);

            if (n <= w->depth || (uint8_t)s[w->depth] < c + side)
                a = mid + 1;
            else
                b = mid;
        }
        *(side ? &w->hi : &w->lo) = a;
    }
    w->depth++;
}

struct unigram_walk unigram_walk(const struct tokenizer *t, const char *s, uint32_t len) {
    return (struct unigram_walk){.s = s, .len = len, .hi = t->unigram.n_sorted};
}

bool unigram_next(const struct tokenizer *t, struct unigram_walk *w) {
    while (w->depth < w->len && w->lo < w->hi) {
        unigram_narrow(t, w);
        if (w->lo == w->hi)
            break;
        w->id = t->unigram.sorted[w->lo]; /* the shortest token is the first one */
        vocab_text(&t->vocab, w->id, &w->n);
        if (w->n == w->depth)
            return true;
    }
    return false;
}

static void offer(struct step *to, double score, uint32_t id, uint32_t from) {
    if (to->from == UINT32_MAX || score > (double)to->score)
        *to = (struct step){(float)score, id, from};
}

/* Extends the ways to @at by all tokens that begin there; the character there has @n_char bytes. */
static void step_from(const struct tokenizer *t, const char *s, uint32_t len, uint32_t at,
                      uint32_t n_char, struct step *best) {
    const struct unigram *u = &t->unigram;
    struct unigram_walk w = unigram_walk(t, s + at, len - at);
    bool known = false;

    /* at least one way leads to this position */
    assert(at + n_char <= len && (at == 0 || best[at].from < at));
    while (unigram_next(t, &w)) {
        known |= w.n == n_char;
        offer(&best[at + w.n], (double)u->score[w.id] + (double)best[at].score, w.id, at);
    }
    if (!known)
        offer(&best[at + n_char], (double)u->unknown_score + (double)best[at].score, TOKEN_NONE,
              at);
}

/* Adds the tokens of the best way; neighbouring unknown characters become one token. */
static int add_way(struct words *w, struct step *best, uint32_t len) {
    uint32_t unknown = w->t->special.unk < 0 ? TOKEN_NONE : (uint32_t)w->t->special.unk, next = 0;

    for (uint32_t at = len, from; at > 0; at = from) { /* reverses the links */
        from = best[at].from;
        assert(from < at);
        best[at].from = next;
        next = at;
    }
    bool after_unknown = false;
    for (uint32_t at = next; at > 0; at = best[at].from) {
        bool is_unknown = best[at].id == TOKEN_NONE;
        uint32_t id = is_unknown ? unknown : best[at].id;

        if (id != TOKEN_NONE && !(is_unknown && after_unknown))
            TRY(tokens_add(w->out, (int32_t)id));
        after_unknown = is_unknown;
    }
    return 0;
}

/* Adds the tokens of the best way through the @n bytes at @s, which are normalised. */
static int unigram_add_best(struct words *w, const char *s, uint32_t n) {
    CLEANUP(freep) struct step *best = malloc((n + 1) * sizeof(*best));
    uint32_t n_chars = 0;

    if (!best)
        return -ENOMEM;
    for (uint32_t i = 0; i <= n; i++)
        best[i] = (struct step){.from = UINT32_MAX};
    best[0].score = 0;
    for (uint32_t at = 0, n_char; at < n; at += n_char) {
        uint32_t cp;

        n_char = unicode_decode(s + at, s + n, &cp);
        step_from(w->t, s, n, at, n_char, best);
        if (++n_chars % PAUSE_CHARS == 0)
            TRY(job_pause());
    }
    return add_way(w, best, n);
}

/* Returns the bytes of the first word of @s, which ends before a mark. */
static size_t unigram_word(const char *s, size_t len) {
    size_t n = 1;

    while (n < len && !is_space_mark(s + n, len - n))
        n++;
    return n;
}

int unigram_encode(struct words *w, const char *text, size_t len) {
    const struct tokenizer *t = w->t;
    struct gguf_str s = {text, len};

    if (t->published) {
        TRY(steps_run(&t->steps, t->late.n ? STEPS_REST : STEPS_ALL, s, w->first, &w->normal,
                      &w->escaped, &s));
    } else {
        TRY(unigram_normalise(t, text, len, &w->normal));
        s = (struct gguf_str){w->normal.data, w->normal.len};
    }
    if (s.len >= UINT32_MAX / sizeof(struct step))
        return -EMSGSIZE;
    while (s.len) {
        size_t n = t->cut_marks ? unigram_word(s.data, s.len) : s.len;

        TRY(unigram_add_best(w, s.data, (uint32_t)n));
        if (++w->n_words % PAUSE_CHARS == 0)
            TRY(job_pause());
        s.data += n;
        s.len -= n;
    }
    w->normal.len = 0;
    return 0;
}
