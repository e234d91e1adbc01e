#include "daemon/front/deadline.h"

#include <assert.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t exit_code;

static void on_alarm(int signum) {
    static const char line[] = "warn front stopped at_limit=yes\n";
    ssize_t n = write(STDERR_FILENO, line, sizeof(line) - 1);

    (void)n;
    _exit(exit_code);
}

void deadline_set(uint32_t ms, int code) {
    struct itimerval t = {.it_value = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000}};
    struct sigaction a = {.sa_handler = on_alarm};

    assert(ms > 0);
    exit_code = code;
    sigemptyset(&a.sa_mask);
    sigaction(SIGALRM, &a, NULL);
    setitimer(ITIMER_REAL, &t, NULL);
}
