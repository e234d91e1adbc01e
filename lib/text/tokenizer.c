#include "text/tokenizer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/try.h"
#include "text/tokenizer_private.h"

static int read_kind(struct tokenizer *t, const struct gguf *g, struct err *err) {
    static const struct {
        const char *name;
        enum tokenizer_kind kind;
    } kinds[] = {{"gpt2", KIND_BYTES},  {"llama", KIND_SCORES}, {"gemma4", KIND_CHARS},
                 {"bert", KIND_PIECES}, {"t5", KIND_UNIGRAM},   {"plamo2", KIND_COSTS}};
    static const char key[] = "tokenizer.ggml.model";
    struct gguf_str name;

    if (gguf_string(g, key, &name) < 0)
        return err_set(err, 0, NULL, "%s is missing", key);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (strlen(kinds[i].name) == name.len && memcmp(kinds[i].name, name.data, name.len) == 0) {
            t->kind = kinds[i].kind;
            return 0;
        }
    }
    return err_set(err, 0, NULL,
                   "%s is not supported; supported are gpt2, llama, gemma4, bert, t5 and plamo2",
                   key);
}

/* Finds the tokens <0x00> to <0xFF>, which spell single bytes. Those of a published tokenizer have
 * their type; in GGUF files they may be normal ones. A special token of such a text spells nothing:
 * a user's text would write it. */
static void find_fallback(struct tokenizer *t) {
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        uint32_t id;

        snprintf(text, sizeof(text), "<0x%02X>", b);
        t->byte_token[b] = TOKEN_NONE;
        id = vocab_find(&t->vocab, text, 6);
        if (!t->published && id != TOKEN_NONE && vocab_is_mergeable(&t->vocab, id))
            t->byte_token[b] = id;
    }
    /* A token of another type may have the same text. */
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        int b = vocab_byte(&t->vocab, id);

        if (b >= 0)
            t->byte_token[b] = id;
    }
}

static void find_replacement(struct tokenizer *t) {
    const char *text = t->kind == KIND_BYTES ? "\xC3\xAF\xC2\xBF\xC2\xBD" : "\xEF\xBF\xBD";

    t->replacement = TOKEN_NONE;
    if (!t->published)
        t->replacement = vocab_find(&t->vocab, text, strlen(text));
    if (t->replacement >= t->vocab.n || !vocab_is_mergeable(&t->vocab, t->replacement))
        t->replacement = TOKEN_NONE;
    if (t->replacement == TOKEN_NONE && t->special.unk >= 0)
        t->replacement = (uint32_t)t->special.unk;
}

/* Finds the most bytes that one token stands for. Words of KIND_BYTES are raw text; words of all
 * other kinds have marked spaces, like the tokens. Without a replacement token characters may be
 * dropped, so there is no bound (0). */
static void find_longest(struct tokenizer *t) {
    const struct vocab *v = &t->vocab;
    const uint32_t *at = t->kind == KIND_BYTES ? v->piece_at : v->text_at;

    t->longest = 4; /* bytes of a character that becomes one replacement token */
    for (uint32_t id = 0; id < v->n; id++) {
        if (vocab_is_mergeable(v, id))
            t->longest = MAX(t->longest, at[id + 1] - at[id]);
    }
    if (t->replacement == TOKEN_NONE)
        t->longest = 0;
}

/* Finds the bytes that stand before a space mark in some token. Behind all other bytes a word ends
 * before a space mark. */
static void find_glued(struct tokenizer *t) {
    const struct vocab *v = &t->vocab;

    for (uint32_t id = 0; id < v->n; id++) {
        uint32_t len;
        const char *s = vocab_text(v, id, &len);
        bool body = false;

        if (!vocab_is_mergeable(v, id))
            continue;
        for (uint32_t i = 0; i < len;) {
            bool mark = is_space_mark(s + i, len - i);

            if (mark && body)
                t->glued[(uint8_t)s[i - 1]] = true;
            body = !mark;
            i += mark ? SPACE_MARK_LEN : 1;
        }
    }
}

/* Returns whether the model is Phi-3, whose special tokens absorb white space behind them; files do
 * not carry the rule. */
static bool is_phi3(const struct gguf *g) {
    struct gguf_str arch;

    return gguf_string(g, "general.architecture", &arch) == 0 &&
           ((arch.len == 4 && memcmp(arch.data, "phi3", 4) == 0) ||
            (arch.len == 6 && memcmp(arch.data, "phimoe", 6) == 0));
}

static int load_chars(struct tokenizer *t, const struct gguf *g, struct err *err) {
    t->swallow = t->kind == KIND_SCORES && is_phi3(g);
    t->space_prefix = t->kind == KIND_SCORES;
    TRY(special_read_flag(g, "tokenizer.ggml.add_space_prefix", &t->space_prefix, err));
    if (t->kind == KIND_SCORES)
        TRY(spm_load(t, g, err));
    else
        TRY(bpe_load(t, g, err));
    if (t->kind == KIND_CHARS && !t->published)
        t->special.add_bos = true; /* the rule for Gemma 4, although some files deny it */
    find_fallback(t);
    find_glued(t);
    return 0;
}

static int load_costs(struct tokenizer *t, const struct gguf *g, struct err *err) {
    find_fallback(t);
    return plamo_load(t, g, err);
}

/* Reads the rules that only files of hf_tokenizer.c have. */
static int load_published(struct tokenizer *t, const struct gguf *g, struct err *err) {
    const struct gguf_array *flags = gguf_array(g, HF_KEY_FLAGS);

    t->published = gguf_has(g, HF_KEY_STEPS);
    if (!t->published)
        return 0;
    TRY(steps_load(&t->steps, g, HF_KEY_STEPS, err));
    TRY(charsmap_load(&t->unigram.map, g, err));
    t->steps.map = &t->unigram.map;
    TRY(special_read_flag(g, HF_KEY_WHOLE_WORDS, &t->whole_words, err));
    TRY(special_read_flag(g, HF_KEY_FUSE_UNKNOWN, &t->fuse_unknown, err));
    TRY(special_read_flag(g, HF_KEY_CUT_MARKS, &t->cut_marks, err));
    if (!flags)
        return 0;
    t->flags = malloc(t->vocab.n);
    if (!t->flags)
        return -ENOMEM;
    if (gguf_array_n(flags) != t->vocab.n ||
        gguf_array_read(flags, GGUF_U8, 0, t->vocab.n, t->flags) != t->vocab.n)
        return err_set(err, 0, NULL, "%s has not one small number for each token", HF_KEY_FLAGS);
    return 0;
}

int tokenizer_new(struct tokenizer **out, const struct gguf *g, struct err *err) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    TRY(read_kind(t, g, err));
    TRY(vocab_load(&t->vocab, g, err));
    TRY(load_published(t, g, err));
    if (t->kind == KIND_BYTES)
        TRY(bpe_load(t, g, err));
    else if (t->kind == KIND_PIECES)
        TRY(wordpiece_load(t, g, err));
    else if (t->kind == KIND_UNIGRAM)
        TRY(unigram_load(t, g, err));
    else if (t->kind == KIND_COSTS)
        TRY(load_costs(t, g, err));
    else
        TRY(load_chars(t, g, err));
    TRY(vocab_make_pieces(&t->vocab, t->kind));
    TRY(markers_init(&t->markers, &t->vocab, NULL));
    TRY(late_load(t, err));
    find_replacement(t);
    find_longest(t);
    *out = STEAL(t);
    return 0;
}

struct tokenizer *tokenizer_free(struct tokenizer *t) {
    if (t) {
        vocab_deinit(&t->vocab);
        free(t->pairs.slot);
        free(t->markers.id);
        free(t->special.end);
        late_deinit(&t->late);
        unigram_deinit(&t->unigram);
        steps_deinit(&t->steps);
        free(t->flags);
        for (unsigned k = 0; k < PRETOK_STAGES; k++)
            cutter_free(t->own_cuts.cutter[k]);
        free(t);
    }
    return NULL;
}

/* Looks for markers in a text from left to right. */
struct marker_scan {
    const struct tokenizer *t;
    const char *text;
    size_t len;
    bool special;
    const struct text_range *user;
    size_t n_user;
    /* what is searched; their numbers are places in ids, NULL: ids */
    const struct markers *markers;
    const struct vocab *vocab;
    const uint32_t *ids;
    /* the text is the begin of the input */
    bool first;
    /* ranges for late_normalise(), from the text on that was encoded last */
    const struct text_range *late_user;
    size_t n_late_user;
};

/* Returns whether @cp is a letter in a circle or square, which Unicode counts as alphabetic. */
static bool is_framed_letter(uint32_t cp) {
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

/* Returns whether the character at @s < @end is one of a word (\w of UTS 18). */
static bool in_word(const char *s, const char *end) {
    uint32_t cp;
    unsigned n, class = unicode_class_at(s, end, &n);

    if (class & (UC_LETTER | UC_MARK | UC_DIGIT))
        return true;
    unicode_decode(s, end, &cp);
    if (cp == 0x200C || cp == 0x200D)
        return true;
    if (cp == UNICODE_INVALID)
        return false;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);

    return category == UTF8PROC_CATEGORY_PC || category == UTF8PROC_CATEGORY_NL ||
           is_framed_letter(cp);
}

/* Returns whether marker @id, @n bytes at @at, may be there: some are no part of a longer word. */
static bool stands_free(const struct marker_scan *s, size_t at, size_t n, uint32_t id) {
    const char *end = s->text + s->len, *before = s->text + at;

    if (!s->t->flags || !(s->t->flags[id] & TOKEN_SINGLE_WORD))
        return true;
    if (at + n < s->len && in_word(before + n, end))
        return false;
    while (before > s->text && s->text + at - before < 4) {
        before--;
        if (((uint8_t)*before & 0xC0) != 0x80)
            return !in_word(before, s->text + at);
    }
    return true;
}

/* Returns the position of the first marker at or after @at, with its length in *@n and its id in
 * *@id; the length of the text if there is none. */
static size_t tokenizer_find_marker(struct marker_scan *s, size_t at, size_t *n, uint32_t *id) {
    const struct markers *m = s->markers;

    if (!s->special && m->n_plain == 0)
        return s->len;
    for (; at < s->len; at++) {
        size_t trusted = s->special ? s->len - at : 0;
        uint8_t c = (uint8_t)s->text[at];

        if (m->first[c] == m->first[c + 1])
            continue;
        while (s->n_user && s->user->end <= at) {
            assert(s->n_user == 1 || s->user[1].begin >= s->user[0].end);
            s->user++;
            s->n_user--;
        }
        if (s->special && s->n_user)
            trusted = s->user->begin > at ? MIN(trusted, s->user->begin - at) : 0;
        *n = markers_match(m, s->vocab, s->text + at, s->len - at, trusted, id);
        if (*n == 0)
            continue;
        if (s->ids)
            *id = s->ids[*id];
        if (stands_free(s, at, *n, *id))
            return at;
        at += *n - 1; /* no shorter one is tried there, nor one inside it */
        *n = 0;
    }
    return s->len;
}

/* Returns how many bytes of white space at @s the special token @id before it absorbs. */
static size_t swallowed(const struct tokenizer *t, uint32_t id, const char *s, size_t len) {
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    uint32_t n;
    const char *text = vocab_text(&t->vocab, id, &n);

    if (t->flags && t->flags[id] & TOKEN_RSTRIP)
        return pretok_run(s, len, UC_SPACE, SIZE_MAX);
    if (!t->swallow || !tokenizer_is_special(t, (int32_t)id))
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(keep); i++) {
        if (strlen(keep[i]) == n && memcmp(keep[i], text, n) == 0)
            return 0;
    }
    return pretok_run(s, len, UC_SPACE, SIZE_MAX);
}

/* Returns how many bytes of white space at the end of @s[0..len) the token @id behind absorbs. */
static size_t absorbed_before(const struct tokenizer *t, uint32_t id, const char *s, size_t len) {
    size_t end = len;

    if (!t->flags || !(t->flags[id] & TOKEN_LSTRIP))
        return 0;
    while (end > 0) {
        size_t n = 1;
        unsigned got;

        while (n < MIN(end, 4u) && ((uint8_t)s[end - n] & 0xC0) == 0x80)
            n++;
        if (!(unicode_class_at(s + end - n, s + end, &got) & UC_SPACE) || got != n)
            break;
        end -= n;
    }
    return len - end;
}

static int encode_text(struct words *w, struct marker_scan *s);

/* Encodes the text from @from to @end between two tokens of a search: a text in which late tokens
 * are searched, or words. */
static int encode_between(struct words *w, struct marker_scan *s, size_t from, size_t end) {
    static int (*const encode[])(struct words * w, const char *text, size_t len) = {
        [KIND_BYTES] = words_encode,     [KIND_CHARS] = words_encode,
        [KIND_SCORES] = words_encode,    [KIND_PIECES] = wordpiece_encode,
        [KIND_UNIGRAM] = unigram_encode, [KIND_COSTS] = plamo_encode,
    };
    CLEANUP(late_text_deinit) struct late_text text = {0};
    const struct tokenizer *t = s->t;

    if (t->late.n == 0 || s->ids)
        return encode[t->kind](w, s->text + from, end - from);
    for (; s->n_late_user && s->late_user->end <= from; s->n_late_user--)
        s->late_user++;
    TRY(late_normalise(&text, t, s->text, from, end, s->late_user, s->n_late_user));
    struct marker_scan late = {.t = t,
                               .text = text.text.data,
                               .len = text.text.len,
                               .special = s->special,
                               .user = text.user,
                               .n_user = text.n_user,
                               .markers = &t->late.markers,
                               .vocab = &t->late.vocab,
                               .ids = t->late.id,
                               .first = w->first};

    return encode_text(w, &late);
}

static int encode_text(struct words *w, struct marker_scan *s) {
    /* markers are searched from at on, also in white space that one has absorbed; texts begin at
     * from */
    size_t at = 0, from = 0;

    while (at < s->len) {
        size_t n = 0;
        uint32_t id = 0;
        size_t next = tokenizer_find_marker(s, at, &n, &id), end = next;

        assert(next >= at && next + n <= s->len && next + n > at);
        w->first = from == 0 && s->first;
        if (n && next > from)
            end = next - absorbed_before(s->t, id, s->text + from, next - from);
        if (end > from)
            TRY(encode_between(w, s, from, end));
        at = next + n;
        if (n == 0)
            break;
        size_t stop = at + swallowed(s->t, id, s->text + at, s->len - at);

        /* one that would begin behind its end is left out, as the library does */
        if (stop > from || !s->t->flags || !(s->t->flags[id] & TOKEN_LSTRIP))
            TRY(tokens_add(w->out, (int32_t)id));
        w->after_special = true;
        from = stop;
        if (!s->t->published)
            at = from;
    }
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     const struct text_range *user, size_t n_user, struct tokens *out) {
    CLEANUP(words_deinit) struct words w = {0};
    struct marker_scan scan = {.t = t,
                               .text = text,
                               .len = len,
                               .special = flags & TOKENIZE_SPECIAL,
                               .user = user,
                               .n_user = n_user,
                               .late_user = user,
                               .n_late_user = n_user,
                               .markers = &t->markers,
                               .vocab = &t->vocab,
                               .first = true};

    if (t->late.n)
        scan.markers = &t->late.early;
    TRY(words_init(&w, t, len, out));
    if (len > INT32_MAX)
        return -EMSGSIZE;
    if (flags & TOKENIZE_BOS && t->special.add_bos && t->special.bos >= 0)
        TRY(tokens_add(out, t->special.bos));
    TRY(encode_text(&w, &scan));
    if (flags & TOKENIZE_BOS && t->special.add_eos && t->special.eos >= 0)
        TRY(tokens_add(out, t->special.eos));
    return 0;
}

static bool known(const struct tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->vocab.n;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, size_t *len) {
    const struct vocab *v = &t->vocab;

    *len = 0;
    if (!known(t, id))
        return "";
    if (!special && (v->type[id] == TOKEN_CONTROL || v->type[id] == TOKEN_UNKNOWN))
        return "";
    *len = v->piece_at[id + 1] - v->piece_at[id];
    return v->piece.data + v->piece_at[id];
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special,
                     struct buf *out) {
    bool strip = t->space_prefix;

    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *s = tokenizer_piece(t, ids[i], special, &len);

        /* Drops the space that was added before the first text, which may follow special tokens. */
        if (strip && len && !tokenizer_is_special(t, ids[i])) {
            bool space = *s == ' ';

            strip = false;
            s += space;
            len -= space;
        }
        TRY(buf_add(out, s, len));
    }
    return 0;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t) {
    return t->vocab.n;
}

int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->special.bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->special.eos;
}

int32_t tokenizer_fim(const struct tokenizer *t, enum tokenizer_fim part) {
    return t->special.fim[part];
}

bool tokenizer_adds_bos(const struct tokenizer *t) {
    return t->special.add_bos && t->special.bos >= 0;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->special.n_end; i++) {
        if (t->special.end[i] == id)
            return true;
    }
    return false;
}

const int32_t *tokenizer_end_ids(const struct tokenizer *t, size_t *n) {
    *n = t->special.n_end;
    return t->special.end;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    return known(t, id) &&
           (t->vocab.type[id] == TOKEN_CONTROL || t->vocab.type[id] == TOKEN_UNKNOWN ||
            (t->vocab.type[id] == TOKEN_USER && !vocab_is_plain(&t->vocab, (uint32_t)id)));
}

uint32_t tokenizer_n_duplicates(const struct tokenizer *t) {
    return t->vocab.n_duplicates;
}

uint32_t tokenizer_n_skipped_merges(const struct tokenizer *t) {
    return t->n_skipped_merges;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len) {
    uint32_t id = TOKEN_NONE;

    if (len == 0)
        return -1;
    if (markers_match(&t->markers, &t->vocab, text, len, len, &id) < len)
        id = vocab_find(&t->vocab, text, len);
    if (id >= t->vocab.n)
        return -1;
    return (int32_t)id;
}

struct gguf_str tokenizer_text(const struct tokenizer *t, int32_t id) {
    struct gguf_str s = {.data = ""};
    uint32_t len;

    if (known(t, id)) {
        s.data = vocab_text(&t->vocab, (uint32_t)id, &len);
        s.len = len;
    }
    return s;
}
