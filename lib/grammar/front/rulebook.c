#include "grammar/front/rulebook.h"

#include <string.h>

#include "base/try.h"

/* Returns the index of the entry with this name, or HASH_INDEX_NONE if the name is unknown. */
static uint32_t rulebook_index(const struct rulebook *book, const char *s, size_t len) {
    HASH_INDEX_EACH(book->names, (uint32_t)bytes_hash(s, len), i) {
        if (book->entry[i].len == len && memcmp(book->entry[i].s, s, len) == 0)
            return i;
    }
    return HASH_INDEX_NONE;
}

int rulebook_add(struct rulebook *book, struct build *b, const char *s, size_t len, uint32_t *out) {
    uint32_t i = rulebook_index(book, s, len);

    if (i == HASH_INDEX_NONE) {
        char *text = arena_strndup(&b->arena, s, MIN(len, (size_t)100));
        struct rulebook_entry e = {.s = s, .len = len};

        if (!text || !ARRAY_GROW(book->entry, book->n, book->cap, 64) ||
            hash_index_add(&book->names, (uint32_t)bytes_hash(s, len), book->n) < 0)
            return build_no_memory(b);
        i = book->n;
        TRY(build_rule(b, text, &e.rule));
        b->rule[e.rule].may_copy = true;
        book->entry[book->n++] = e;
    }
    *out = i;
    return build_work(b, len);
}

const struct rulebook_entry *rulebook_find(const struct rulebook *book, const char *s, size_t len) {
    uint32_t i = rulebook_index(book, s, len);

    if (i == HASH_INDEX_NONE)
        return NULL;
    return &book->entry[i];
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
    hash_index_deinit(&book->names);
}
