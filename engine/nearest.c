#include "engine/nearest.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

enum { PREFIX_MAX = 40 }; /* longest name of an architecture whose keys are looked for */

/* Reads the file's architecture. Returns false if there is none with a usable name. */
static bool read_prefix(const struct gguf *file, char out[PREFIX_MAX + 1]) {
    struct gguf_str name;

    if (gguf_string(file, "general.architecture", &name) < 0 || name.len > PREFIX_MAX)
        return false;
    snprintf(out, PREFIX_MAX + 1, "%.*s", (int)name.len, name.data);
    return true;
}

/* Fills the lists of a try: what the file has and the survey does not know. */
static void compare_names(const struct gguf *file, const struct survey *s, struct nearest *out) {
    size_t n_prefix = strlen(s->prefix);
    char key[128];

    out->missing = s->missing;
    for (uint64_t i = 0; i < gguf_n_tensors(file); i++) {
        const char *part = survey_part(gguf_tensor(file, i)->name);

        if (!survey_has(&s->known, part))
            survey_add(&out->unknown, part);
    }
    for (uint64_t i = 0; i < gguf_n_kv(file); i++) {
        enum gguf_type type;
        struct gguf_str name = gguf_key(file, i, &type);

        snprintf(key, sizeof(key), "%.*s", (int)MIN(name.len, sizeof(key) - 1), name.data);
        if (strncmp(key, s->prefix, n_prefix) != 0 || key[n_prefix] != '.')
            continue;
        if (!survey_has(&s->keys, key + n_prefix + 1))
            survey_add(&out->keys, key + n_prefix + 1);
    }
}

/* Returns how far a row is: a row that accepts the file is nearer than any other, then tensors
 * count, then keys. */
static uint64_t distance(const struct nearest *n) {
    uint64_t tensors = n->missing.n + n->unknown.n;

    return (n->accepts ? 0 : 1ull << 40) + (tensors << 20) + n->keys.n;
}

/* Keeps @found among the @n nearest rows, of which *@n_out are there already, in order. */
static void insert_nearest(struct nearest *out, int n, int *n_out, const struct nearest *found) {
    int at = *n_out;

    while (at > 0 && distance(found) < distance(&out[at - 1]))
        at--;
    if (at == n)
        return;
    *n_out = MIN(*n_out + 1, n);
    memmove(&out[at + 1], &out[at], (size_t)(*n_out - 1 - at) * sizeof(*out));
    out[at] = *found;
}

int nearest_find(const struct gguf *file, nearest_try try_row, struct nearest *out, int n) {
    char prefix[PREFIX_MAX + 1];
    int n_out = 0, r = 0;

    assert(n > 0 && n <= NEAREST);
    if (!read_prefix(file, prefix))
        return 0;
    CLEANUP(freep) struct survey *s = malloc(sizeof(*s));
    CLEANUP(freep) struct nearest *found = malloc(sizeof(*found));
    if (!s || !found)
        return -ENOMEM;
    for (uint32_t i = 0; r != -ENOENT; i++) {
        struct err err = {0};

        memset(s, 0, sizeof(*s));
        memset(found, 0, sizeof(*found));
        s->prefix = prefix;
        survey_add(&s->keys, "vocab_size"); /* the tokenizer says it */
        r = try_row(file, i, s, &found->name, &err);
        if (r == -ENOMEM)
            return r;
        if (r == -ENOENT || strcmp(found->name, prefix) == 0)
            continue;
        found->accepts = r == 0;
        snprintf(found->why, sizeof(found->why), "%s", err.message);
        compare_names(file, s, found);
        insert_nearest(out, n, &n_out, found);
    }
    return n_out;
}
