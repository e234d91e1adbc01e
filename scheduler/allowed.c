#include "scheduler/allowed.h"

#include <errno.h>
#include <stdlib.h>

#define BAD_WORDS_MAX (1u << 20) /* most ids of all words together, with a length for each word */

struct allowed {
    uint32_t n_words, n_bad;
    /* words of several tokens: the length and the ids of each */
    int32_t *bad;
    /* [n_words] tokens that are allowed after any output */
    uint32_t bits[];
};

static int allowed_refuse(struct err *err, const char *field) {
    return err_set(err, 400, field, "'%s' must be a list of token ids of this model.", field);
}

int ids_check(struct str list, uint32_t n_vocab, const char *field, struct err *err) {
    bool valid = list.len % sizeof(int32_t) == 0;

    for (uint32_t i = 0; i < ids_n(list) && valid; i++)
        valid = (uint32_t)ids_at(list, i) < n_vocab;
    return valid ? 0 : allowed_refuse(err, field);
}

int allowed_check(const struct submit *m, uint32_t n_vocab, struct err *err) {
    uint32_t n_bad = ids_n(m->bad_words);

    if (ids_check(m->allowed, n_vocab, "allowed_token_ids", err) < 0)
        return -EINVAL;
    if (m->bad_words.len % sizeof(int32_t) || n_bad > BAD_WORDS_MAX)
        return allowed_refuse(err, "bad_words");
    for (uint32_t i = 0, len; i < n_bad; i += len + 1) {
        struct str word = {m->bad_words.data + (i + 1) * sizeof(int32_t), 0};

        len = (uint32_t)ids_at(m->bad_words, i);
        if (len == 0 || len > n_bad - i - 1)
            return allowed_refuse(err, "bad_words");
        word.len = len * (uint32_t)sizeof(int32_t);
        if (ids_check(word, n_vocab, "bad_words", err) < 0)
            return -EINVAL;
    }
    return 0;
}

static void read_bad_words(struct allowed *a, struct str list) {
    for (uint32_t i = 0, len; i < ids_n(list); i += len + 1) {
        uint32_t first = (uint32_t)ids_at(list, i + 1);

        len = (uint32_t)ids_at(list, i);
        if (len == 1) {
            a->bits[first / 32] &= ~(1u << first % 32);
            continue;
        }
        memcpy(a->bad + a->n_bad, list.data + i * sizeof(int32_t), (len + 1) * sizeof(int32_t));
        a->n_bad += len + 1;
    }
}

int allowed_new(struct allowed **out, const struct submit *m, uint32_t n_vocab) {
    uint32_t n = ids_n(m->allowed), n_words = (n_vocab + 31) / 32;

    *out = NULL;
    if (n == 0 && m->bad_words.len == 0)
        return 0;
    struct allowed *a = calloc(1, sizeof(*a) + n_words * sizeof(a->bits[0]));
    int32_t *bad = malloc(m->bad_words.len + sizeof(*bad));

    if (!a || !bad) {
        free(a);
        free(bad);
        return -ENOMEM;
    }
    a->n_words = n_words;
    a->bad = bad;
    for (uint32_t i = 0; i < (n ? n : n_vocab); i++) {
        uint32_t id = n ? (uint32_t)ids_at(m->allowed, i) : i;

        a->bits[id / 32] |= 1u << id % 32;
    }
    read_bad_words(a, m->bad_words);
    *out = a;
    return 0;
}

struct allowed *allowed_free(struct allowed *a) {
    if (a)
        free(a->bad);
    free(a);
    return NULL;
}

bool allowed_depends(const struct allowed *a) {
    return a && a->n_bad > 0;
}

int64_t allowed_mask(const struct allowed *a, const int32_t *output, uint32_t n, bool joins,
                     uint32_t *bits) {
    int64_t left = 0;

    for (uint32_t i = 0; i < a->n_words; i++)
        bits[i] = joins ? bits[i] & a->bits[i] : a->bits[i];
    for (uint32_t i = 0, len; i < a->n_bad; i += len + 1) {
        const int32_t *word = a->bad + i + 1;

        len = (uint32_t)a->bad[i];
        uint32_t last = (uint32_t)word[len - 1];
        if (len - 1 <= n && memcmp(word, output + n - (len - 1), (len - 1) * sizeof(*word)) == 0)
            bits[last / 32] &= ~(1u << last % 32);
    }
    for (uint32_t i = 0; i < a->n_words; i++)
        left += __builtin_popcount(bits[i]);
    return left;
}
