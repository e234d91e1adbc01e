#pragma once

/* Returns from the calling function with the error that @call returns, where that is negative. What
 * is allocated until then has a CLEANUP. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_result = (call);                                                                   \
                                                                                                   \
        if (try_result < 0)                                                                        \
            return try_result;                                                                     \
    } while (0)
