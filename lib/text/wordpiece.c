/*
 * wordpiece - WordPiece, the tokenizer of BERT. Text is cleaned and lower-cased, and cut at white
 * space and around punctuation and CJK characters. Each word is split from the left, the longest
 * token first; a word that cannot be split so is one unknown token. In GGUF files U+2581 marks the
 * tokens that begin a word.
 *
 * Most files do not say whether a model keeps upper case and accents. Unless one of two rare keys
 * of the file says otherwise, all text is lower-cased and stripped of accents, as the models in use
 * expect.
 */

#include <assert.h>
#include <utf8proc.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/tokenizer_private.h"

/* most characters of a word; longer words are unknown, as in BERT's own tokenizer */
#define WORD_CHARS 100u
#define DECOMPOSED_MAX 8
#define PAUSE_WORDS 64u
#define PAUSE_CHARS 4096u

int wordpiece_load(struct tokenizer *t, const struct gguf *g, struct err *err) {
    TRY(special_ids_load_bert(&t->special, &t->vocab, g, err));
    t->space_prefix = true;
    t->lower = t->strip = true;
    TRY(special_read_flag(g, "tokenizer.ggml.normalizer.lowercase", &t->lower, err));
    t->strip = t->lower;
    return special_read_flag(g, "tokenizer.ggml.normalizer.strip_accents", &t->strip, err);
}

static bool is_cjk(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

/* Returns whether a character is a word of its own; symbols of ASCII are, too. */
static bool stands_alone(uint32_t c) {
    unsigned class = c < 0x80 ? unicode_ascii_class[c] : unicode_wide_class(c);

    return class & UC_PUNCT || (c < 0x80 && class & UC_SYMBOL) || is_cjk(c);
}

/* Returns whether a character is removed: control and format characters, unassigned ones, and bytes
 * that are not UTF-8. */
static bool is_dropped(uint32_t c) {
    static const uint32_t dropped = 1u << UTF8PROC_CATEGORY_CC | 1u << UTF8PROC_CATEGORY_CF |
                                    1u << UTF8PROC_CATEGORY_CN | 1u << UTF8PROC_CATEGORY_CO |
                                    1u << UTF8PROC_CATEGORY_CS;

    if (c < 0x80)
        return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
    return c == UNICODE_INVALID || c == 0xFFFD ||
           (dropped >> utf8proc_category((utf8proc_int32_t)c) & 1);
}

/* Encodes the word in w->normal, which begins with a space mark and has w->n_chars characters, and
 * empties it. */
static int wordpiece_end_word(struct words *w) {
    const struct vocab *v = &w->t->vocab;
    const char *s = w->normal.data;
    size_t len = w->normal.len, before = w->out->n;
    int r = 0;

    if (w->n_chars == 0)
        return 0;
    for (size_t at = 0; at < len && r == 0;) {
        size_t n = MIN(len - at, v->max_len);
        uint32_t id = TOKEN_NONE;

        for (; n > 0; n--)
            if ((at + n == len || ((uint8_t)s[at + n] & 0xC0) != 0x80) &&
                (id = vocab_find(v, s + at, n)) != TOKEN_NONE && vocab_is_mergeable(v, id))
                break;
        if (n == 0 || w->n_chars > WORD_CHARS) {
            w->out->n = before;
            r = w->t->replacement == TOKEN_NONE ? 0
                                                : tokens_add(w->out, (int32_t)w->t->replacement);
            break;
        }
        r = tokens_add(w->out, (int32_t)id);
        at += n;
    }
    w->n_chars = 0;
    w->normal.len = 0;
    if (r < 0)
        return r;
    if (++w->n_words % PAUSE_WORDS)
        return 0;
    return job_pause();
}

static int add_char(struct words *w, uint32_t c) {
    char utf8[4];

    if (w->n_chars == 0)
        TRY(buf_add(&w->normal, SPACE_MARK, SPACE_MARK_LEN));
    if (w->n_chars++ > WORD_CHARS) /* too long a word is unknown */
        return 0;
    return buf_add(&w->normal, utf8, unicode_encode(c, utf8));
}

/* Appends a character without its case. */
static int add_lowered(const struct tokenizer *t, uint32_t c, struct buf *out) {
    char utf8[4];

    if (t->lower && c >= 0x80)
        c = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    else if (t->lower && c >= 'A' && c <= 'Z')
        c += 32;
    return buf_add(out, utf8, unicode_encode(c, utf8));
}

/* Appends a character without its accents and case. */
static int add_stripped(const struct tokenizer *t, uint32_t c, struct buf *out) {
    utf8proc_int32_t part[DECOMPOSED_MAX];
    int boundary = 0;
    utf8proc_ssize_t n = -1;

    if (c >= 0x80 && t->strip)
        n = utf8proc_decompose_char((utf8proc_int32_t)c, part, DECOMPOSED_MAX,
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
    if (n < 1 || n > DECOMPOSED_MAX)
        return add_lowered(t, c, out);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        if (utf8proc_category(part[i]) != UTF8PROC_CATEGORY_MN)
            TRY(add_lowered(t, (uint32_t)part[i], out));
    return 0;
}

static bool wordpiece_is_space(uint32_t c) {
    return (c < 0x80 ? unicode_ascii_class[c] : unicode_wide_class(c)) & UC_SPACE;
}

int wordpiece_normalise(const struct tokenizer *t, struct gguf_str text, struct buf *out) {
    const char *end = text.data + text.len;
    uint32_t n_chars = 0;

    for (const char *s = text.data; s < end;) {
        uint32_t c;

        s += unicode_decode(s, end, &c);
        if (++n_chars % PAUSE_CHARS == 0)
            TRY(job_pause());
        if (is_dropped(c))
            continue;
        if (is_cjk(c) || wordpiece_is_space(c))
            TRY(buf_add_char(out, ' '));
        if (wordpiece_is_space(c))
            continue;
        TRY(add_stripped(t, c, out));
        if (is_cjk(c))
            TRY(buf_add_char(out, ' '));
    }
    return 0;
}

/* Encodes normalised text. */
static int wordpiece_cut(struct words *w, const char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        uint32_t c;

        i += unicode_decode(text + i, text + len, &c);
        bool space = wordpiece_is_space(c), alone = stands_alone(c);
        if (space || alone)
            TRY(wordpiece_end_word(w));
        if (!space)
            TRY(add_char(w, c));
        if (alone)
            TRY(wordpiece_end_word(w));
    }
    return wordpiece_end_word(w);
}

int wordpiece_encode(struct words *w, const char *text, size_t len) {
    assert(w->n_chars == 0 && w->normal.len == 0);
    if (w->t->late.n)
        return wordpiece_cut(w, text, len);
    buf_clear(&w->escaped);
    TRY(wordpiece_normalise(w->t, (struct gguf_str){text, len}, &w->escaped));
    return wordpiece_cut(w, w->escaped.data, w->escaped.len);
}
