#include "text/charsmap.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

int charsmap_load(struct charsmap *m, const struct gguf *g, struct err *err) {
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    const struct gguf_array *a = gguf_array(g, key);
    uint64_t n = a ? gguf_array_n(a) : 0;
    uint32_t trie_bytes = 0;

    if (!a) {
        if (gguf_has(g, key))
            return err_set(err, 0, NULL, "%s is not an array", key);
        return 0;
    }
    if (n == 0)
        return 0;
    if (n < 4 || n > UINT32_MAX)
        return err_set(err, 0, NULL, "%s is not an array of bytes", key);
    m->bytes = malloc(n);
    if (!m->bytes)
        return -ENOMEM;
    if (gguf_array_read(a, GGUF_U8, 0, n, m->bytes) < n &&
        gguf_array_read(a, GGUF_I8, 0, n, m->bytes) < n)
        return err_set(err, 0, NULL, "%s is not an array of bytes", key);
    for (unsigned i = 0; i < 4; i++)
        trie_bytes |= (uint32_t)m->bytes[i] << 8 * i;
    if (trie_bytes % 4 || trie_bytes > n - 4 || m->bytes[n - 1] != 0)
        return err_set(err, 0, NULL, "%s has no trie of strings", key);
    m->n_units = trie_bytes / 4;
    m->strings = (const char *)m->bytes + 4 + trie_bytes;
    m->n_strings = (uint32_t)(n - 4 - trie_bytes);
    return 0;
}

void charsmap_deinit(struct charsmap *m) {
    free(m->bytes);
    *m = (struct charsmap){0};
}

static uint32_t charsmap_unit(const struct charsmap *m, uint32_t i) {
    const uint8_t *p = m->bytes + 4 + (size_t)i * 4;

    assert(i < m->n_units);
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Returns the offset from a unit to its children. */
static uint32_t charsmap_children(uint32_t unit) {
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

size_t charsmap_find(const struct charsmap *m, const char *s, size_t len, bool shortest,
                     struct gguf_str *out) {
    uint32_t value = 0, at = m->n_units ? charsmap_children(charsmap_unit(m, 0)) : 0;
    size_t found = 0;

    for (size_t i = 0; i < len && !(found && shortest); i++) {
        uint8_t c = (uint8_t)s[i];

        at ^= c;
        if (at >= m->n_units)
            break;
        uint32_t unit = charsmap_unit(m, at);

        if ((unit & (1u << 31 | 0xFF)) != c)
            break;
        at ^= charsmap_children(unit);
        if (at >= m->n_units)
            break;
        if (unit & 1u << 8) {
            found = i + 1;
            value = charsmap_unit(m, at) & ~(1u << 31);
        }
    }
    if (found == 0 || value >= m->n_strings)
        return 0;
    *out = (struct gguf_str){.data = m->strings + value, .len = strlen(m->strings + value)};
    return found;
}
