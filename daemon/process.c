#include "daemon/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/util.h"

bool process_take_flag(int *argc, char **argv, const char *flag) {
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], flag) != 0)
            continue;
        memmove(&argv[i], &argv[i + 1], sizeof(*argv) * (size_t)(*argc - i));
        (*argc)--;
        return true;
    }
    return false;
}

int process_printed(void) {
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}

void process_open_standard(void) {
    int fd;

    do {
        fd = open("/dev/null", O_RDONLY);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

/* With a limit of 0 Linux still
 * gives it to the program of kernel.core_pattern, with 1 it does not (do_coredump()). The hard
 * limit stays, so that prlimit(1) can allow one. */
void process_forbid_cores(void) {
    struct rlimit core;

    if (getrlimit(RLIMIT_CORE, &core) < 0)
        return;
    core.rlim_cur = MIN((rlim_t)1, core.rlim_max);
    setrlimit(RLIMIT_CORE, &core);
}
