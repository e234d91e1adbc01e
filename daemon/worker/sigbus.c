#include "daemon/worker/sigbus.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* Set before the handler is installed; the handler runs on the thread that has read the file. */
static int exit_code;
static const char *last_line;

static void on_bus(int signum, siginfo_t *info, void *context) {
    /* another cause, for instance a fault of the memory itself */
    if (info->si_code != BUS_ADRERR) {
        signal(signum, SIG_DFL);
        return; /* the instruction runs again and faults */
    }
    ssize_t n = write(STDERR_FILENO, last_line, strlen(last_line));
    (void)n; /* no other way is left to report it */
    _exit(exit_code);
}

void sigbus_exit_with(int code, const char *line) {
    struct sigaction act = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};

    exit_code = code;
    last_line = line;
    sigemptyset(&act.sa_mask);
    sigaction(SIGBUS, &act, NULL);
}
