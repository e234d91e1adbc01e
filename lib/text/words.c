/*
 * words - encodes text one word at a time. A word is a piece that the pre-tokenizer cuts.
 * SentencePiece has no pre-tokenizer. But if no token of the vocabulary reaches from a certain byte
 * to a following space, no merge crosses that border, so text is cut there and the words stay
 * short.
 *
 * Texts repeat their words, so the results of short words are kept until the end of the text: a
 * table addressed by the hash of the word, where a newer word replaces an older one. Only the
 * lengths are cleared: zeros for the whole table would come as new pages for every text.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/tokenizer_private.h"

#define CACHE_SLOTS 4096u
#define CACHE_MIN_TEXT 1024 /* bytes of a text from which on a cache helps */
#define CACHE_WORD 22
#define CACHE_IDS 6
#define PAUSE_WORDS 64u

struct word_cache {
    /* bytes of the word; 0: the slot is empty */
    uint8_t len[CACHE_SLOTS];
    struct cached_word {
        uint8_t n;
        char text[CACHE_WORD];
        uint32_t id[CACHE_IDS];
    } word[CACHE_SLOTS];
};

int words_init(struct words *w, const struct tokenizer *t, size_t text_len, struct tokens *out) {
    *w = (struct words){.t = t, .out = out, .after_special = true};
    buf_init(&w->normal, SIZE_MAX / 2);
    buf_init(&w->escaped, SIZE_MAX / 2);
    if (text_len >= CACHE_MIN_TEXT) {
        w->cache = malloc(sizeof(*w->cache));
        if (!w->cache)
            return -ENOMEM;
        memset(w->cache->len, 0, sizeof(w->cache->len));
    }
    return 0;
}

void words_deinit(struct words *w) {
    free(w->cache);
    merger_deinit(&w->merger);
    buf_deinit(&w->normal);
    buf_deinit(&w->escaped);
}

static int add_replacement(struct words *w) {
    if (w->t->replacement == TOKEN_NONE)
        return 0;
    return tokens_add(w->out, (int32_t)w->t->replacement);
}

/* Adds the byte tokens of a character without a token, or the replacement if a byte has no token.
 * *@unknown: the character before it became the replacement, too; some vocabularies have one for
 * all of them. */
static int words_add_unknown(struct words *w, const char *s, size_t len, bool *unknown) {
    const uint32_t *byte_token = w->t->byte_token;
    bool again = *unknown && w->t->fuse_unknown;
    int r;

    *unknown = false;
    for (size_t i = 0; i < len; i++) {
        if (byte_token[(uint8_t)s[i]] == TOKEN_NONE) {
            *unknown = true;
            if (again)
                return 0;
            return add_replacement(w);
        }
    }
    for (size_t i = 0; i < len; i++)
        if ((r = tokens_add(w->out, (int32_t)byte_token[(uint8_t)s[i]])) != 0)
            return r;
    return 0;
}

static int split_bytes(struct words *w, const char *s, size_t len) {
    TRY(merger_reserve(&w->merger, len));
    for (size_t i = 0; i < len; i++)
        w->merger.sym[i] = (struct symbol){.id = w->t->byte_token[(uint8_t)s[i]], .len = 1};
    w->merger.n = len;
    return 0;
}

static int split_chars(struct words *w, const char *s, size_t len) {
    const struct vocab *v = &w->t->vocab;
    int r = merger_reserve(&w->merger, len);

    w->merger.n = 0;
    for (size_t i = 0; i < len && r == 0;) {
        uint32_t cp;
        unsigned n = unicode_decode(s + i, s + len, &cp);
        uint32_t id = vocab_find(v, s + i, n);

        if (id != TOKEN_NONE && !vocab_is_mergeable(v, id))
            id = TOKEN_NONE;
        w->merger.sym[w->merger.n++] = (struct symbol){.id = id, .len = n};
        i += n;
    }
    return r;
}

/* Returns the token that is the whole word, or TOKEN_NONE. For llama 3 such a word is one token,
 * whatever the merges would make. */
static uint32_t whole_word(const struct tokenizer *t, const char *s, size_t len) {
    char text[TOKEN_TEXT_MAX + 4];
    size_t n = 0;
    uint32_t id;

    if (!t->whole_words || len > TOKEN_TEXT_MAX)
        return TOKEN_NONE;
    if (t->kind == KIND_CHARS) {
        id = vocab_find(&t->vocab, s, len);
        if (id != TOKEN_NONE && vocab_is_mergeable(&t->vocab, id))
            return id;
        return TOKEN_NONE;
    }
    for (size_t i = 0; i < len; i++) {
        if (n > TOKEN_TEXT_MAX)
            return TOKEN_NONE;
        n += unicode_encode(byte_to_char((uint8_t)s[i]), text + n);
    }
    id = vocab_find(&t->vocab, text, n);
    if (id != TOKEN_NONE && vocab_is_mergeable(&t->vocab, id))
        return id;
    return TOKEN_NONE;
}

/* Returns whether @len bytes are certain to exceed the token limit, which saves the work and about
 * 40 bytes of memory per byte of a long word. */
static bool words_too_long(const struct words *w, size_t len) {
    const struct tokens *out = w->out;

    return out->max && w->t->longest && len / w->t->longest > out->max - MIN(out->n, out->max);
}

static int merge_word(struct words *w, const char *s, size_t len) {
    const struct tokenizer *t = w->t;
    const char *end = s + len;
    uint32_t whole = whole_word(t, s, len);
    bool unknown = false;

    if (words_too_long(w, len))
        return -EMSGSIZE;
    if (whole != TOKEN_NONE)
        return tokens_add(w->out, (int32_t)whole);
    if (t->kind == KIND_BYTES)
        TRY(split_bytes(w, s, len));
    else
        TRY(split_chars(w, s, len));
    TRY(merger_run(&w->merger, &t->pairs));
    for (size_t i = 0; i < w->merger.n; i++) {
        const struct symbol *sym = &w->merger.sym[i];

        if (sym->id < t->vocab.n) {
            TRY(tokens_add(w->out, (int32_t)sym->id));
            unknown = false;
        } else {
            TRY(words_add_unknown(w, s, sym->len, &unknown));
        }
        s += sym->len;
    }
    assert(s == end); /* every byte is read once */
    return 0;
}

/* Called between words. Returns 0, or -ECANCELED in an abandoned job. */
static int pause_sometimes(struct words *w) {
    if (++w->n_words % PAUSE_WORDS)
        return 0;
    return job_pause();
}

/* Encodes the word @s[0..len), or copies its ids from the cache. */
static int encode_word(struct words *w, const char *s, size_t len) {
    size_t before = w->out->n;
    int r = 0;

    if (!w->cache || len == 0 || len > CACHE_WORD)
        return merge_word(w, s, len);
    uint32_t slot = hash_bytes(&w->t->vocab.key, s, len) % CACHE_SLOTS;
    struct cached_word *c = &w->cache->word[slot];
    if (w->cache->len[slot] == len && memcmp(c->text, s, len) == 0) {
        for (unsigned i = 0; i < c->n && r == 0; i++)
            r = tokens_add(w->out, (int32_t)c->id[i]);
        return r;
    }
    r = merge_word(w, s, len);
    if (r == 0 && w->out->n - before <= CACHE_IDS) {
        w->cache->len[slot] = (uint8_t)len;
        c->n = (uint8_t)(w->out->n - before);
        memcpy(c->text, s, len);
        if (c->n) /* there may be no array yet */
            memcpy(c->id, w->out->id + before, c->n * sizeof(*c->id));
    }
    return r;
}

/* Encodes the words of @s by @encode. */
static int words_cut(struct words *w, const char *s, size_t len,
                     int (*encode)(struct words *w, const char *s, size_t len)) {
    CLEANUP(pretok_end) struct pretok_cursor c = {0};
    const char *word;
    size_t n;

    pretok_begin(&c, w->t->pretok, s, len);
    for (;;) {
        int found = pretok_next(&c, &word, &n);

        if (found <= 0)
            return found;
        TRY(encode(w, word, n));
        TRY(pause_sometimes(w));
    }
}

static int encode_bytes(struct words *w, const char *s, size_t len) {
    if (w->t->nfc) {
        bool changed;

        buf_clear(&w->normal);
        TRY(unicode_nfc(s, len, &w->normal, &changed));
        if (changed) {
            s = w->normal.data;
            len = w->normal.len;
        }
    }
    return words_cut(w, s, len, encode_word);
}

/* Copies @s to w->escaped with spaces as U+2581, with @prefix also one before it. */
static int words_escape(struct words *w, const char *s, size_t len, bool prefix) {
    const char *end = s + len;

    if (prefix)
        TRY(buf_add_str(&w->escaped, SPACE_MARK));
    while (s < end) {
        const char *space = memchr(s, ' ', (size_t)(end - s));
        size_t n = (size_t)((space ? space : end) - s);

        TRY(buf_add(&w->escaped, s, n));
        if (space)
            TRY(buf_add_str(&w->escaped, SPACE_MARK));
        s += n + (space != NULL);
    }
    return 0;
}

/* Returns the length of the first word of escaped text. For KIND_CHARS (gemma 4) a word is at most
 * a line, or a run of line breaks, unless the file has its own rules. */
static size_t next_chars(const struct tokenizer *t, const char *s, size_t len) {
    bool lines = t->kind == KIND_CHARS && !t->published, broken = *s == '\n', body = false;
    size_t i = 0;

    while (i < len) {
        bool mark = is_space_mark(s + i, len - i);

        if (lines && (s[i] == '\n') != broken)
            break;
        if (mark && ((body && !t->glued[(uint8_t)s[i - 1]]) || (i > 0 && t->cut_marks)))
            break;
        body = !mark;
        i += mark ? SPACE_MARK_LEN : 1;
    }
    return i;
}

/* Encodes text in which spaces are marked. */
static int encode_marked(struct words *w, const char *s, size_t len) {
    while (len) {
        size_t n = next_chars(w->t, s, len);

        assert(n > 0 && n <= len);
        TRY(encode_word(w, s, n));
        TRY(pause_sometimes(w));
        s += n;
        len -= n;
    }
    return 0;
}

static int encode_chars(struct words *w, const char *s, size_t len) {
    if (!w->t->pretok)
        return encode_marked(w, s, len);
    return words_cut(w, s, len, encode_marked);
}

int words_encode(struct words *w, const char *text, size_t len) {
    const struct tokenizer *t = w->t;
    struct gguf_str s = {text, len};
    int r;

    if (t->published) {
        TRY(steps_run(&t->steps, t->late.n ? STEPS_REST : STEPS_ALL, s, w->first, &w->normal,
                      &w->escaped, &s));
    } else if (t->kind != KIND_BYTES) {
        buf_clear(&w->escaped);
        TRY(words_escape(w, text, len, t->space_prefix && w->after_special));
        s = (struct gguf_str){w->escaped.data, w->escaped.len};
    }
    if (t->kind == KIND_BYTES)
        r = encode_bytes(w, s.data, s.len);
    else
        r = encode_chars(w, s.data, s.len);
    w->after_special = false;
    return r;
}
