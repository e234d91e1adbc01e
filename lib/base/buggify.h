#pragma once

/*
 * buggify - takes rare paths on purpose. In the simulator, which compiles with -DWEFT_BUGGIFY,
 * BUGGIFY(name) is true now and then, as the run's seed decides (tests/support/buggify.h has the
 * list); everywhere else it is the constant false. A site may only imitate events that can happen
 * anyway: no memory, no room, nothing found, fewer items than possible. The code behind it must
 * give correct results in both cases.
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
