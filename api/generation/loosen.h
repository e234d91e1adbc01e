#pragma once

/*
 * loosen - takes from a tool's schema what cannot be enforced: the keyword at fault, at its place,
 * so that the names, types and rules of everything else still hold. The schema then allows all that
 * it allowed before, and more.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/lib_types.h"

/* A part that was left out of the schema of a tool. */
struct loosened {
    const char *tool;
    /* JSON pointer to a keyword; to a schema: all of it but its type */
    const char *place;
};

#define LOOSENED_KEPT 16u /* of one request; others are counted */

/* Parts that were left out of all tools of a request; the texts lie in its arena. */
struct loosened_list {
    struct loosened v[LOOSENED_KEPT];
    /* number of all, also those without a place in v[] */
    uint32_t n;
};

struct loosener {
    yyjson_mut_doc *doc;
    /* that of the tool's arguments */
    yyjson_mut_val *schema;
    struct arena *arena;
    const char *tool;
    struct loosened_list *list;
    enum loosen_step { LOOSEN_KEYWORD, LOOSEN_RULES, LOOSEN_DEEP, LOOSEN_VALUES, LOOSEN_ALL } step;
};

/* Takes out what @place, a JSON pointer, says cannot be enforced; "": what is likeliest to be at
 * fault, in steps. Returns false if nothing is left to be taken out but the schema as a whole. */
bool loosen_schema(struct loosener *l, const char *place);
/* Notes that nothing of a schema is enforced. */
void loosen_note_all(struct loosener *l);
