#include "tests/support/buggify.h"

#include "base/buggify.h"
#include "base/rng.h"

static struct rng rng;

#define X(id, words)                                                                               \
    struct buggify_site buggify_##id;                                                              \
    struct buggify_site buggify_##id = {.name = #id, .text = words};
BUGGIFY_SITES(X)
#undef X

struct buggify_site *const buggify_sites[BUGGIFY_N] = {
#define X(id, words) &buggify_##id,
    BUGGIFY_SITES(X)
#undef X
};

void buggify_begin(uint64_t seed, uint32_t mask) {
    rng.state = seed ^ 0x62756767u;
    for (uint32_t i = 0; i < BUGGIFY_N; i++)
        buggify_sites[i]->on = mask >> i & 1;
}

bool buggify_now(struct buggify_site *site) {
    if (!site->on || rng_below(&rng, 4) > 0)
        return false;
    site->n_taken++;
    return true;
}
