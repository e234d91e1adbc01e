/* vocab - sorts the tokens of a model by bytes, by length and by kind of text. */

#include "grammar/vocab/vocab.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "grammar/vocab/kinds.h"

#define LANES 8  /* words */
#define BLOCK 31 /* a byte of a lane counts up to 8 of each vector */

/* Returns the number of characters that begin in @bytes. */
static uint32_t utf8_n_chars(const uint8_t *bytes, size_t len) {
    uint32_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += (bytes[i] & 0xc0) != 0x80;
    return n;
}

static int copy_tokens(struct grammar_vocab *v, const struct grammar_token *token) {
    size_t total = 0;

    for (uint32_t i = 0; i < v->n; i++)
        total += token[i].len;
    v->bytes = malloc(total + 1);
    v->begin = calloc((size_t)v->n + 1, sizeof(*v->begin));
    v->n_chars = calloc((size_t)v->n + 1, sizeof(*v->n_chars));
    v->place = calloc((size_t)v->n + 1, sizeof(*v->place));
    v->text = calloc((size_t)grammar_vocab_n_words(v) + 1, sizeof(*v->text));
    v->is_special = calloc((size_t)v->n + 1, 1);
    if (!v->place || !v->text || !v->bytes || !v->begin || !v->n_chars || !v->is_special)
        return -ENOMEM;
    total = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        v->begin[i] = total;
        if (token[i].len)
            memcpy(v->bytes + total, token[i].bytes, token[i].len);
        v->n_chars[i] = (uint16_t)MIN(utf8_n_chars(v->bytes + total, token[i].len), UINT16_MAX);
        total += token[i].len;
        v->is_special[i] = token[i].special;
    }
    v->begin[v->n] = total;
    return 0;
}

static int make_trie(struct grammar_vocab *v, bool special, struct trie *out) {
    CLEANUP(freep) struct trie_string *s = malloc(((size_t)v->n + 1) * sizeof(*s));
    CLEANUP(freep) uint8_t *is_end = calloc((size_t)v->n + 1, 1);
    uint32_t n = 0;

    if (!s || !is_end)
        return -ENOMEM;
    for (size_t i = 0; i < v->n_ends; i++)
        is_end[v->ends[i]] = 1;
    for (uint32_t i = 0; i < v->n; i++) {
        /* An end token is no text, but a marker may be one: <|call|> of gpt-oss. */
        if (v->is_special[i] == special && (special || !is_end[i]))
            s[n++] = (struct trie_string){
                v->bytes + v->begin[i],
                (uint32_t)MIN(v->begin[i + 1] - v->begin[i], (size_t)TRIE_MAX_LEN + 1), i};
    }
    return trie_init(out, s, n);
}

static int find_lengths(struct grammar_vocab *v) {
    size_t n_words = grammar_vocab_n_words(v) + 1ul;

    v->utf8 = calloc(n_words, sizeof(*v->utf8));
    for (uint32_t n = 0; n <= FREE_CHARS_MAX; n++) {
        v->at_most[n] = calloc(n_words, sizeof(*v->at_most[n]));
        if (!v->utf8 || !v->at_most[n])
            return -ENOMEM;
    }
    for (uint32_t i = 0; i < v->trie.n_items; i++) {
        uint32_t id = v->trie.item[i];

        for (uint32_t n = v->n_chars[id]; n <= FREE_CHARS_MAX; n++)
            set_bit(v->at_most[n], id);
        if (kinds_is_text(v->bytes + v->begin[id], v->begin[id + 1] - v->begin[id]))
            set_bit(v->utf8, id);
    }
    return 0;
}

DEFINE_FREEP(struct grammar_vocab, vocab)

int vocab_new(struct grammar_vocab **out, const struct grammar_token *token, uint32_t n,
              const int32_t *ends, size_t n_ends) {
    for (size_t i = 0; i < n_ends; i++) {
        if (ends[i] < 0 || (uint32_t)ends[i] >= n)
            return -EINVAL;
    }
    CLEANUP(vocab_freep) struct grammar_vocab *v = calloc(1, sizeof(*v));

    if (!v)
        return -ENOMEM;
    v->n = n;
    v->ends = malloc((n_ends + 1) * sizeof(*v->ends));
    if (!v->ends)
        return -ENOMEM;
    for (size_t i = 0; i < n_ends; i++)
        v->ends[v->n_ends++] = ends[i];
    TRY(copy_tokens(v, token));
    TRY(make_trie(v, false, &v->trie));
    TRY(trie_find_kinds(&v->trie));
    for (uint32_t i = 0; i < v->trie.n_items; i++) {
        v->place[v->trie.item[i]] = i;
        set_bit(v->text, v->trie.item[i]);
    }
    TRY(find_lengths(v));
    TRY(make_trie(v, true, &v->special));
    *out = STEAL(v);
    return 0;
}

struct grammar_vocab *vocab_free(struct grammar_vocab *v) {
    if (!v)
        return NULL;
    trie_deinit(&v->trie);
    trie_deinit(&v->special);
    for (uint32_t n = 0; n <= FREE_CHARS_MAX; n++)
        free(v->at_most[n]);
    free(v->utf8);
    free(v->bytes);
    free(v->begin);
    free(v->n_chars);
    free(v->place);
    free(v->text);
    free(v->is_special);
    free(v->ends);
    free(v);
    return NULL;
}

uint32_t grammar_vocab_n_words(const struct grammar_vocab *v) {
    return (v->n + 31) / 32;
}

const uint8_t *vocab_bytes(const struct grammar_vocab *v, int32_t token, size_t *len) {
    assert(token >= 0 && (uint32_t)token < v->n);
    *len = v->begin[token + 1] - v->begin[token];
    return v->bytes + v->begin[token];
}

bool vocab_is_end(const struct grammar_vocab *v, int32_t token) {
    for (size_t i = 0; i < v->n_ends; i++) {
        if (v->ends[i] == token)
            return true;
    }
    return false;
}

/* Returns the longest special token with which @s begins, or -1. */
int32_t vocab_special_at(const struct grammar_vocab *v, const char *s, size_t len, size_t *n) {
    const struct trie *t = &v->special;
    uint32_t node = 0;
    int32_t found = -1;

    for (size_t i = 0; i < len; i++) {
        const struct trie_node *p = &t->node[node];
        uint32_t c = p->child, last = p->child + p->n_children;

        while (c < last && t->node[c].byte != (uint8_t)s[i])
            c++;
        if (c == last)
            break;
        node = c;
        if (t->node[c].n_items) {
            found = (int32_t)t->item[t->node[c].items];
            *n = i + 1;
        }
    }
    return found;
}

/* Works without a popcnt instruction: sums of 2, 4 and 8 bits side by side, in explicit vectors,
 * since compilers do not vectorise such a loop at -O2. */
int64_t bits_count(const uint32_t *bits, uint32_t n_words) {
    typedef uint32_t lanes __attribute__((vector_size(LANES * sizeof(uint32_t))));
    uint64_t total = 0;

    for (uint32_t i = 0; i < n_words;) {
        lanes sum = {0};

        for (uint32_t k = 0; k < BLOCK && i < n_words; k++, i += LANES) {
            lanes x = {0};

            if (n_words - i >= LANES)
                memcpy(&x, bits + i, sizeof(x));
            else
                memcpy(&x, bits + i, (n_words - i) * sizeof(*bits));
            x -= x >> 1 & 0x55555555u;
            x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
            sum += (x + (x >> 4)) & 0x0f0f0f0fu;
        }
        sum = (sum & 0x00ff00ffu) + (sum >> 8 & 0x00ff00ffu);
        for (unsigned l = 0; l < LANES; l++)
            total += (sum[l] & 0xffff) + (sum[l] >> 16);
    }
    return (int64_t)total;
}
