#include "base/meant.h"

#include <string.h>

#include "base/util.h"

#define NAME_MAX_BYTES 40

/* Returns the number of letters to insert, leave out or replace until @a is @b, or any number above
 * @most if it is above @most. */
static size_t meant_distance(const char *a, const char *b, size_t most) {
    size_t n = strlen(b), row[NAME_MAX_BYTES + 1];

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0], least = i + 1;

        row[0] = i + 1;
        for (size_t j = 1; j <= n; j++) {
            size_t left = row[j - 1], up = row[j];

            row[j] = MIN(MIN(left, up) + 1, diagonal + (a[i] != b[j - 1]));
            diagonal = up;
            least = MIN(least, row[j]);
        }
        if (least > most)
            return least;
    }
    return row[n];
}

void meant_init(struct meant *m, const char *said) {
    *m = (struct meant){.said = said, .most = strlen(said) < 4 ? 1 : 2};
}

void meant_try(struct meant *m, const char *name) {
    if (strlen(m->said) > NAME_MAX_BYTES || strlen(name) > NAME_MAX_BYTES)
        return;
    size_t d = meant_distance(m->said, name, m->most);
    if (d > m->most)
        return;
    m->most = d - (d > 0);
    m->name = name;
}
