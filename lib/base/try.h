#pragma once

/* Returns from the calling function with the result of @call if that is negative. Objects that are
 * owned at this point must have a CLEANUP. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_result = (call);                                                                   \
                                                                                                   \
        if (try_result < 0)                                                                        \
            return try_result;                                                                     \
    } while (0)
