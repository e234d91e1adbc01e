/*
 * shorts - lists the short texts of a vocabulary by their number of characters.
 *
 * Near a limit of characters a state may read all texts of up to n characters and none of more than
 * m, and only those between have to be looked at (classify_like.c). So texts with the same number
 * of characters lie one behind the other, in the order of their bytes, each without the prefix that
 * it shares with the one before.
 */

#include "grammar/vocab/vocab.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t n_in_common(const uint8_t *x, size_t n_x, const uint8_t *y, size_t n_y) {
    uint32_t n = 0;

    while (n < n_x && n < n_y && x[n] == y[n])
        n++;
    return n;
}

/* Goes over the texts once and counts them and their bytes, by their number of characters. With
 * @write it also writes them; @n and @n_bytes then are the places where each number begins. */
static void list_shorts(struct shorts *s, const struct grammar_vocab *v, const uint32_t *is_short,
                        uint32_t *n, uint32_t *n_bytes, bool write) {
    const struct trie *t = vocab_trie(v);
    const uint8_t *before[FREE_CHARS_MAX + 1];
    size_t len_before[FREE_CHARS_MAX + 1] = {0};

    for (uint32_t i = 0; i < t->n_items; i++) {
        uint32_t id = t->item[i], chars = vocab_n_chars(v, (int32_t)id);
        size_t len;
        const uint8_t *bytes = vocab_bytes(v, (int32_t)id, &len);

        if (!(is_short[id / 32] >> (id % 32) & 1))
            continue;
        assert(chars <= FREE_CHARS_MAX && len <= UINT8_MAX);
        uint32_t same = n_in_common(bytes, len, before[chars], len_before[chars]);

        before[chars] = bytes;
        len_before[chars] = len;
        if (write) {
            uint8_t *to = s->bytes + n_bytes[chars];

            s->id[n[chars]] = id;
            to[0] = (uint8_t)same;
            to[1] = (uint8_t)(len - same);
            memcpy(to + 2, bytes + same, len - same);
        }
        n[chars]++;
        n_bytes[chars] += 2 + (uint32_t)len - same;
    }
}

int shorts_init(struct shorts *s, const struct grammar_vocab *v, const uint32_t *is_short) {
    uint32_t n[FREE_CHARS_MAX + 1] = {0}, n_bytes[FREE_CHARS_MAX + 1] = {0};

    *s = (struct shorts){0};
    list_shorts(s, v, is_short, n, n_bytes, false);
    for (uint32_t c = 0; c <= FREE_CHARS_MAX; c++) {
        s->first[c + 1] = s->first[c] + n[c];
        s->at[c + 1] = s->at[c] + n_bytes[c];
    }
    s->id = malloc(MAX(s->first[FREE_CHARS_MAX + 1], 1u) * sizeof(*s->id));
    s->bytes = malloc(MAX(s->at[FREE_CHARS_MAX + 1], 1u));
    if (!s->id || !s->bytes)
        return -ENOMEM;
    memcpy(n, s->first, sizeof(n));
    memcpy(n_bytes, s->at, sizeof(n_bytes));
    list_shorts(s, v, is_short, n, n_bytes, true);
    assert(memcmp(n, s->first + 1, sizeof(n)) == 0 && memcmp(n_bytes, s->at + 1, sizeof(n)) == 0);
    return 0;
}

void shorts_deinit(struct shorts *s) {
    free(s->id);
    free(s->bytes);
    *s = (struct shorts){0};
}
