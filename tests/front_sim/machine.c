/*
 * Replaces functions of libc: the calls of the front for time, random bytes, other processes and
 * memory.
 */

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/front_sim/process.h"
#include "tests/front_sim/sim.h"

#define WALL_S 1800000000 /* calendar time at virtual time 0 */

ssize_t getrandom(void *out, size_t n, unsigned flags) {
    bool was = sim_enter();

    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = (uint8_t)sim_below(256);
    sim_leave(was);
    return (ssize_t)n;
}

time_t time(time_t *out) {
    time_t t = WALL_S + sim.ns / 1000000000;

    if (out)
        *out = t;
    return t;
}

int clock_gettime(clockid_t id, struct timespec *out) {
    int64_t base = id == CLOCK_REALTIME ? WALL_S : 0;

    out->tv_sec = base + sim.ns / 1000000000;
    out->tv_nsec = sim.ns % 1000000000;
    return 0;
}

int setitimer(__itimer_which_t which, const struct itimerval *v, struct itimerval *old) {
    sim.deadline_ns =
        sim.ns + (int64_t)v->it_value.tv_sec * 1000000000 + (int64_t)v->it_value.tv_usec * 1000;
    return 0;
}

int kill(pid_t pid, int signum) {
    return process_kill(pid, signum) ? 0 : (errno = ESRCH, -1);
}

int setpriority(__priority_which_t which, id_t who, int value) {
    return 0;
}
