/* Parts that are left out of a tool's schema: the first line is the schema, each further one a
 * place that a refusal names; an empty line names none. What is taken out makes the schema
 * shorter, so that the caller's loop ends, and is noted with its place. */

#include "api/generation/loosen.h"

#include <string.h>
#include <yyjson.h>

#include "base/util.h"
#include "grammar/constraint.h"
#include "tests/fuzz/fuzz.h"

#define STEPS_WITHOUT_A_PLACE 4

/* Takes something out. Returns false if nothing was left. */
static bool take(struct loosener *l, const char *place) {
    size_t before, after;
    CLEANUP(freep) char *one = yyjson_mut_val_write(l->schema, 0, &before);
    bool taken = loosen_schema(l, place);
    CLEANUP(freep) char *two = yyjson_mut_val_write(l->schema, 0, &after);

    FUZZ_ASSERT(one && two && after <= before);
    FUZZ_ASSERT(!taken || after < before);
    for (uint32_t i = 0; i < MIN(l->list->n, LOOSENED_KEPT); i++) {
        const struct loosened *v = &l->list->v[i];

        FUZZ_ASSERT(strcmp(v->tool, "f") == 0 && (!*v->place || *v->place == '/'));
    }
    return taken;
}

static void take_all(struct loosener *l, char *places, const char *end) {
    char place[GRAMMAR_PLACE_MAX];

    for (char *at = places, *next; at < end; at = next + 1) {
        next = memchr(at, '\n', (size_t)(end - at));
        next = next ? next : at + (end - at);
        size_t n = MIN((size_t)(next - at), sizeof(place) - 1);

        memcpy(place, at, n);
        place[n] = 0;
        if (!*place || *place == '/')
            take(l, place);
    }
    for (int i = 0; i < STEPS_WITHOUT_A_PLACE; i++)
        if (!take(l, ""))
            return;
    FUZZ_ASSERT(!"more steps than there are");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(freep) char *text = fuzz_text(data, len);
    char *end = text + len, *line = memchr(text, '\n', len);
    yyjson_doc *doc = yyjson_read(text, line ? (size_t)(line - text) : len, 0);
    struct loosened_list list = {0};
    struct arena arena;

    if (!doc)
        return -1;
    arena_init(&arena, 1 << 20);
    struct loosener l = {
        .doc = yyjson_mut_doc_new(NULL), .arena = &arena, .tool = "f", .list = &list};
    l.schema = yyjson_val_mut_copy(l.doc, yyjson_doc_get_root(doc));
    FUZZ_ASSERT(l.schema);
    take_all(&l, line ? line + 1 : end, end);
    yyjson_mut_doc_free(l.doc);
    yyjson_doc_free(doc);
    arena_deinit(&arena);
    return 0;
}
