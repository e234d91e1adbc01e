#pragma once

/*
 * meant - finds the name that a user meant by a mistyped one. Give every known name to meant_try();
 * then `name` is the nearest, NULL if none is similar.
 */

#include <stddef.h>

struct meant {
    const char *said, *name;
    /* letters that may differ */
    size_t most;
};

/* Begins the search for what @said means. */
void meant_init(struct meant *m, const char *said);
/* Takes @name if it is nearer than all before: by letters to insert, leave out or replace, at most
 * two, of a word of up to three letters one. */
void meant_try(struct meant *m, const char *name);
