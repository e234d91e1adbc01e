#include <criterion/criterion.h>
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/front/deadline.h"

/* Runs a process that never ends by its own. Returns its exit code, and the time in *@seconds. */
static int exit_of(uint32_t first_ms, uint32_t last_ms, double *seconds) {
    struct timespec from, to;
    int status;

    clock_gettime(CLOCK_MONOTONIC, &from);
    pid_t child = fork();
    if (child == 0) {
        deadline_set(first_ms, 1);
        if (last_ms)
            deadline_set(last_ms, 75);
        for (;;)
            poll(NULL, 0, -1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    clock_gettime(CLOCK_MONOTONIC, &to);
    cr_assert(WIFEXITED(status));
    *seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
    return WEXITSTATUS(status);
}

Test(deadline, ends_what_does_not_end_with_the_code_of_the_last_call) {
    double seconds;

    cr_expect_eq(exit_of(150, 0, &seconds), 1);
    cr_expect_geq(seconds, 0.14);
    cr_expect_lt(seconds, 10);
    cr_expect_eq(exit_of(60000, 100, &seconds), 75);
    cr_expect_lt(seconds, 10);
}
