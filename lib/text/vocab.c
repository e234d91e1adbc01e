#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/try.h"
#include "text/tokenizer_private.h"

#define TOKENS_MAX (1u << 24)

static uint64_t load64(const char *s) {
    uint64_t v;

    memcpy(&v, s, 8);
    return v;
}

uint64_t hash_bytes(const struct hash_key *key, const char *s, size_t len) {
    uint64_t h = key->k[0] ^ len, a = 0, b = 0;

    for (; len > 16; s += 16, len -= 16)
        h = hash_mix(load64(s) ^ key->k[1], load64(s + 8) ^ h);
    if (len >= 8) {
        a = load64(s);
        b = load64(s + len - 8);
    } else {
        memcpy(&a, s, len);
    }
    return hash_mix(hash_mix(a ^ key->k[1], b ^ h), key->k[0] | 1);
}

static void vocab_make_key(struct hash_key *key) {
    if (getrandom(key, sizeof(*key), GRND_NONBLOCK) != (ssize_t)sizeof(*key)) {
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        key->k[0] = hash_mix((uint64_t)now.tv_nsec ^ 0x9E3779B97F4A7C15u, (uintptr_t)key);
        key->k[1] = hash_mix(key->k[0] ^ (uint64_t)now.tv_sec, 0xD1B54A32D192ED03u);
    }
    key->k[0] |= 1; /* an odd factor has an inverse, so products do not all become zero */
    key->k[1] |= 1;
}

uint32_t byte_to_char(uint8_t b) {
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)
        return b;
    if (b <= 32)
        return 256u + b;
    if (b == 173)
        return 323;
    return 256u + 33 + (b - 127u);
}

int vocab_by_text(const void *a, const void *b, void *vocab) {
    uint32_t n, m, id = *(const uint32_t *)a, other = *(const uint32_t *)b;
    const char *s = vocab_text(vocab, id, &n);
    const char *t = vocab_text(vocab, other, &m);
    int c = memcmp(s, t, MIN(n, m));

    if (c)
        return c;
    if (n != m) {
        if (n > m)
            return 1;
        return -1;
    }
    return (id > other) - (id < other);
}

/* Returns the byte of GPT-2's printable character @cp, -1 for any other character. */
static int char_to_byte(uint32_t cp) {
    if (cp < 256) {
        if (byte_to_char((uint8_t)cp) != cp)
            return -1;
        return (int)cp;
    }
    if (cp <= 288)
        return (int)cp - 256;
    if (cp == 323)
        return 173;
    if (cp >= 323)
        return -1;
    return (int)cp - 289 + 127;
}

static uint32_t vocab_look_up(const struct vocab *v, const char *text, size_t len, uint32_t hash) {
    HASH_INDEX_EACH(v->index, hash, id) {
        uint32_t n;
        const char *t = vocab_text(v, id, &n);

        if (n == len && memcmp(t, text, len) == 0)
            return id;
    }
    return TOKEN_NONE;
}

uint32_t vocab_find(const struct vocab *v, const char *text, size_t len) {
    if (len == 0 || len > v->max_len)
        return TOKEN_NONE;
    return vocab_look_up(v, text, len, (uint32_t)hash_bytes(&v->key, text, len));
}

/* Enters text @id into the index. Returns 0, -ENOMEM, or -EEXIST: another token has this text. */
static int index_text(struct vocab *v, uint32_t id) {
    uint32_t len;
    const char *text = vocab_text(v, id, &len);
    uint32_t hash = (uint32_t)hash_bytes(&v->key, text, len);

    if (len == 0)
        return 0;
    if (vocab_look_up(v, text, len, hash) != TOKEN_NONE)
        return -EEXIST;
    return hash_index_add(&v->index, hash, id);
}

static int reserve_texts(struct vocab *v, uint32_t n) {
    uint32_t cap = MAX(n, v->cap + v->cap / 2);

    if (n <= v->cap)
        return 0;
    if (!array_resize(&v->text_at, (size_t)cap + 1, sizeof(*v->text_at)) ||
        !array_resize(&v->type, cap, sizeof(*v->type)))
        return -ENOMEM;
    v->cap = cap;
    return 0;
}

static int vocab_add_text(struct vocab *v, const char *text, size_t len, uint8_t type) {
    assert(len <= TOKEN_TEXT_MAX);
    TRY(reserve_texts(v, v->n_all + 1));
    TRY(buf_add(&v->text, text, len));
    v->type[v->n_all++] = type;
    v->text_at[v->n_all] = (uint32_t)v->text.len;
    v->max_len = MAX(v->max_len, (uint32_t)len);
    return 0;
}

int vocab_add_char(struct vocab *v, const char *text, size_t len) {
    assert(vocab_find(v, text, len) == TOKEN_NONE);
    TRY(vocab_add_text(v, text, len, TOKEN_UNDEFINED));
    return index_text(v, v->n_all - 1);
}

/* Reads the types of the v->n_all tokens, which are TOKEN_NORMAL where the file has none. */
static int read_types(struct vocab *v, const struct gguf *g, struct err *err) {
    static const char key[] = "tokenizer.ggml.token_type";
    const struct gguf_array *a = gguf_array(g, key);
    uint64_t i = 0;

    if (!a) {
        if (gguf_has(g, key))
            return err_set(err, 0, NULL, "%s is not an array", key);
        return 0;
    }
    if (gguf_array_type(a) == GGUF_STRING || gguf_array_type(a) == GGUF_BOOL)
        return err_set(err, 0, NULL, "%s is not an array of integers", key);
    if (gguf_array_n(a) != v->n_all)
        return err_set(err, 0, NULL, "%s has %llu entries for %u tokens", key,
                       (unsigned long long)gguf_array_n(a), v->n_all);
    uint64_t n = gguf_array_read(a, GGUF_U8, 0, v->n_all, v->type);

    while (i < n && v->type[i] <= TOKEN_BYTE)
        i++;
    if (i < v->n_all)
        return err_set(err, 0, NULL, "%s[%llu] is %g, not 0 to %d", key, (unsigned long long)i,
                       gguf_array_num(a, i), TOKEN_BYTE);
    return 0;
}

/* Enters the texts of tokens that are, or are not, @mergeable into the index, from the last to the
 * first. Where two of them have one text, the later one is found. */
static int index_texts(struct vocab *v, bool mergeable) {
    for (uint32_t id = v->n; id-- > 0;) {
        if (vocab_is_mergeable(v, id) != mergeable)
            continue;
        int r = index_text(v, id);

        if (r == -EEXIST)
            v->n_duplicates++;
        else if (r < 0)
            return r;
    }
    return 0;
}

int vocab_load(struct vocab *v, const struct gguf *g, struct err *err) {
    static const char key[] = "tokenizer.ggml.tokens";
    const struct gguf_array *tokens = gguf_array(g, key);
    uint32_t n;

    if (!tokens || gguf_array_type(tokens) != GGUF_STRING)
        return err_set(err, 0, NULL, "%s is %s", key,
                       gguf_has(g, key) ? "not an array of strings" : "missing");
    if (gguf_array_n(tokens) == 0 || gguf_array_n(tokens) > TOKENS_MAX)
        return err_set(err, 0, NULL, "%s has %llu entries; there must be 1 to %u", key,
                       (unsigned long long)gguf_array_n(tokens), TOKENS_MAX);
    n = (uint32_t)gguf_array_n(tokens);
    vocab_make_key(&v->key);
    buf_init(&v->text, UINT32_MAX);
    buf_init(&v->piece, UINT32_MAX);
    TRY(reserve_texts(v, n));
    v->text_at[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct gguf_str s = gguf_array_str(tokens, i);

        if (s.len > TOKEN_TEXT_MAX)
            return err_set(err, 0, NULL, "%s[%u] has %zu bytes, more than %u", key, i, s.len,
                           TOKEN_TEXT_MAX);
        TRY(vocab_add_text(v, s.data, s.len, TOKEN_NORMAL));
    }
    v->n = n;
    TRY(read_types(v, g, err));
    TRY(hash_index_reserve(&v->index, n));
    TRY(index_texts(v, true));
    return index_texts(v, false);
}

int vocab_read_scores(const struct vocab *v, const struct gguf *g, float **out, struct err *err) {
    const struct gguf_array *a = gguf_array(g, VOCAB_SCORES);
    CLEANUP(freep) float *score = calloc(v->n, sizeof(*score));

    if (!score)
        return -ENOMEM;
    if (!a || gguf_array_n(a) != v->n || gguf_array_type(a) == GGUF_STRING ||
        gguf_array_type(a) == GGUF_BOOL)
        return err_set(err, 0, NULL, "%s is not an array with a number for each of %u tokens",
                       VOCAB_SCORES, v->n);
    uint64_t n = gguf_array_read(a, GGUF_F32, 0, v->n, score);

    if (n < v->n)
        return err_set(err, 0, NULL, "%s[%llu] is not a number", VOCAB_SCORES,
                       (unsigned long long)n);
    *out = STEAL(score);
    return 0;
}

void vocab_deinit(struct vocab *v) {
    buf_deinit(&v->text);
    buf_deinit(&v->piece);
    free(v->text_at);
    free(v->piece_at);
    free(v->type);
    hash_index_deinit(&v->index);
}

bool vocab_is_found(const struct vocab *v, uint32_t id) {
    uint32_t len;
    const char *text = vocab_text(v, id, &len);

    return v->n_duplicates == 0 || vocab_find(v, text, len) == id;
}

bool vocab_is_plain(const struct vocab *v, uint32_t id) {
    uint32_t len;
    const char *text = vocab_text(v, id, &len);

    if (v->type[id] != TOKEN_USER || len == 0)
        return false;
    for (uint32_t i = 0; i < len;) {
        unsigned n, c = unicode_class_at(text + i, text + len, &n);

        if (!(c & UC_SPACE) && !is_space_mark(text + i, len - i))
            return false;
        i += n;
    }
    return true;
}

bool vocab_is_mergeable(const struct vocab *v, uint32_t id) {
    switch ((enum token_type)v->type[id]) {
    case TOKEN_UNDEFINED:
    case TOKEN_NORMAL:
    case TOKEN_UNUSED:
        return true;
    case TOKEN_USER:
        return vocab_is_plain(v, id);
    default:
        return false;
    }
}

/* Returns the byte of "<0xXX>", or -1. */
static int vocab_byte_of(const char *s, size_t len) {
    int high, low;

    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    high = hex_digit(s[3]);
    low = hex_digit(s[4]);
    if (high < 0 || low < 0)
        return -1;
    return high * 16 + low;
}

/* Appends a piece; GPT-2's printable characters become bytes, all other characters stay. */
static int add_bytes_piece(struct buf *out, const char *s, uint32_t len) {
    for (uint32_t i = 0; i < len;) {
        uint32_t cp;
        unsigned n = unicode_decode(s + i, s + len, &cp);
        int b = cp == UNICODE_INVALID ? -1 : char_to_byte(cp);

        if (b < 0)
            TRY(buf_add(out, s + i, n));
        else
            TRY(buf_add_char(out, (char)b));
        i += n;
    }
    return 0;
}

/* Appends a piece with its space marks as spaces. */
static int add_chars_piece(struct buf *out, const char *s, uint32_t len) {
    for (uint32_t i = 0; i < len;) {
        bool mark = is_space_mark(s + i, len - i);

        TRY(buf_add_char(out, mark ? ' ' : s[i]));
        i += mark ? SPACE_MARK_LEN : 1;
    }
    return 0;
}

int vocab_byte(const struct vocab *v, uint32_t id) {
    uint32_t len;
    const char *text = vocab_text(v, id, &len);

    if (v->type[id] != TOKEN_BYTE)
        return -1;
    return vocab_byte_of(text, len);
}

int vocab_make_pieces(struct vocab *v, enum tokenizer_kind kind) {
    assert(!v->piece_at && v->n <= v->n_all);
    int r = buf_reserve(&v->piece, v->text.len);

    v->piece_at = reallocarray(NULL, (size_t)v->n + 1, sizeof(*v->piece_at));
    if (r < 0 || !v->piece_at)
        return -ENOMEM;
    for (uint32_t id = 0; id < v->n && r == 0; id++) {
        uint32_t len;
        const char *text = vocab_text(v, id, &len);
        int b = vocab_byte(v, id);

        v->piece_at[id] = (uint32_t)v->piece.len;
        if (b >= 0)
            r = buf_add_char(&v->piece, (char)b);
        else if (!vocab_is_mergeable(v, id) || kind == KIND_COSTS ||
                 (v->type[id] == TOKEN_USER && kind == KIND_BYTES))
            r = buf_add(&v->piece, text, len);
        else if (kind == KIND_BYTES)
            r = add_bytes_piece(&v->piece, text, len);
        else
            r = add_chars_piece(&v->piece, text, len);
    }
    v->piece_at[v->n] = (uint32_t)v->piece.len;
    return r;
}
