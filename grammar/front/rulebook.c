#include "grammar/front/rulebook.h"

#include <string.h>

static uint32_t hash_of(const char *s, size_t len) {
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)s[i]) * 16777619u;
    return h ^ h >> 15;
}

static int grow(struct rulebook *book, struct build *b) {
    uint32_t cap = book->cap ? book->cap * 2 : 64;
    struct rulebook_entry *v = realloc(book->entry, cap * sizeof(*v));
    uint32_t *slot = calloc(cap * 2, sizeof(*slot));

    if (v)
        book->entry = v;
    if (!v || !slot) {
        free(slot);
        return build_no_memory(b);
    }
    free(book->slot);
    book->slot = slot;
    book->mask = cap * 2 - 1;
    book->cap = cap;
    for (uint32_t i = 0; i < book->n; i++) {
        uint32_t h = hash_of(v[i].s, v[i].len) & book->mask;

        while (slot[h])
            h = (h + 1) & book->mask;
        slot[h] = i + 1;
    }
    return 0;
}

/* Returns the slot of the name, or the free slot where it belongs. */
static uint32_t slot_of(const struct rulebook *book, const char *s, size_t len) {
    uint32_t h = hash_of(s, len) & book->mask;

    for (; book->slot[h]; h = (h + 1) & book->mask) {
        const struct rulebook_entry *e = &book->entry[book->slot[h] - 1];

        if (e->len == len && memcmp(e->s, s, len) == 0)
            break;
    }
    return h;
}

int rulebook_take(struct rulebook *book, struct build *b, const char *s, size_t len,
                  uint32_t *out) {
    int r = book->n == book->cap ? grow(book, b) : 0;

    if (r < 0)
        return r;
    uint32_t h = slot_of(book, s, len);

    if (!book->slot[h]) {
        char *text = arena_strndup(&b->arena, s, MIN(len, (size_t)100));
        struct rulebook_entry e = {.s = s, .len = len};

        r = text ? build_rule(b, text, &e.rule) : build_no_memory(b);
        if (r < 0)
            return r;
        b->rule[e.rule].may_copy = true;
        book->entry[book->n] = e;
        book->slot[h] = ++book->n;
    }
    *out = book->slot[h] - 1;
    return build_work(b, len);
}

const struct rulebook_entry *rulebook_find(const struct rulebook *book, const char *s, size_t len) {
    uint32_t h = book->n ? slot_of(book, s, len) : 0;

    return book->n && book->slot[h] ? &book->entry[book->slot[h] - 1] : NULL;
}

int rulebook_check(const struct rulebook *book, struct build *b) {
    for (uint32_t i = 0; i < book->n; i++) {
        const struct rulebook_entry *e = &book->entry[i];

        if (!e->defined)
            return build_invalid(b, "grammar: rule '%.*s' is not defined",
                                 (int)MIN(e->len, (size_t)100), e->s);
    }
    return 0;
}

void rulebook_deinit(struct rulebook *book) {
    free(book->entry);
    free(book->slot);
}
