#include "daemon/worker/sigbus.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* Set before the handler, read by it: whichever thread has read the file. */
static int exit_code;
static const char *last_line;

static void on_bus(int signum, siginfo_t *info, void *context) {
    if (info->si_code != BUS_ADRERR) { /* for instance, an error of the memory itself */
        signal(signum, SIG_DFL);
        return; /* the instruction faults again */
    }
    ssize_t n = write(STDERR_FILENO, last_line, strlen(last_line));
    (void)n; /* there is nowhere else to say it */
    _exit(exit_code);
}

void sigbus_exit_with(int code, const char *line) {
    struct sigaction act = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};

    exit_code = code;
    last_line = line;
    sigemptyset(&act.sa_mask);
    sigaction(SIGBUS, &act, NULL);
}
