#include "text/repeats.h"

#include <assert.h>

/*
 * The period follows from the prefix function of Knuth, Morris and Pratt: border[i] is the length
 * of the longest proper prefix of tokens[0, i] that is also its suffix. A text of n tokens has the
 * period p if and only if its prefix of n - p tokens is also its suffix. `k` grows by at most one
 * for each token and only falls otherwise, so there are at most 2n comparisons.
 */
uint32_t repeats_period(const int32_t *tokens, uint32_t n) {
    uint16_t border[REPEATS_MAX];
    uint32_t k = 0;

    assert(n > 0 && n <= REPEATS_MAX);
    border[0] = 0;
    for (uint32_t i = 1; i < n; i++) {
        while (k > 0 && tokens[i] != tokens[k])
            k = border[k - 1];
        k += tokens[i] == tokens[k];
        border[i] = (uint16_t)k;
    }
    return n - k;
}
