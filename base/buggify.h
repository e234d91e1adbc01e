#pragma once

/*
 * buggify - rare paths taken on purpose. In the simulator, which compiles with -DWEFT_BUGGIFY,
 * BUGGIFY(name) is true now and then, as the run's seed decides (tests/support/buggify.h has the
 * list); everywhere else it is false and nothing of it remains. A site only does what may happen
 * anyway: no memory, no room, nothing found, less than there could be. What follows must be right
 * all the same.
 */

#ifdef WEFT_BUGGIFY
#include <stdbool.h>

struct buggify_site;
/* Returns true if the simulator takes @site this time (tests/support/buggify.c). */
bool buggify_now(struct buggify_site *site);

#define BUGGIFY(name)                                                                              \
    (__extension__({                                                                               \
        extern struct buggify_site buggify_##name;                                                 \
        buggify_now(&buggify_##name);                                                              \
    }))
#else
#define BUGGIFY(name) false
#endif
