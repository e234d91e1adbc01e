#pragma once

/*
 * result - results of functions whose last step is an allocation or a call of the system.
 */

#include <errno.h>
#include <stdbool.h>

/* Returns 0 if @made, all that was to be allocated, is there, else -ENOMEM. */
static inline int enomem_unless(bool made) {
    if (made)
        return 0;
    return -ENOMEM;
}

/* Returns -errno if @result, a system call's, is negative, else 0. */
static inline int errno_if_negative(long result) {
    if (result < 0)
        return -errno;
    return 0;
}
