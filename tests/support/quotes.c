#include "tests/support/quotes.h"

#include <stdlib.h>
#include <string.h>

static struct made {
    struct made *next;
    char text[];
} * made; /* all texts: LeakSanitizer finds them */

const char *json_quotes(const char *text) {
    size_t len = strlen(text);
    struct made *m = malloc(sizeof(*m) + len + 1);

    if (!m)
        abort();
    memcpy(m->text, text, len + 1);
    for (char *p = m->text; (p = strchr(p, '\'')); p++)
        *p = '"';
    m->next = made;
    made = m;
    return m->text;
}
