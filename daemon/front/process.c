#include "daemon/front/process.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/util.h"
#include "daemon/workers/file_work.h"

#define STACK_BYTES ((size_t)256 << 10)

bool process_consume_flag(int *argc, char **argv, const char *flag) {
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], flag) != 0)
            continue;
        memmove(&argv[i], &argv[i + 1], sizeof(*argv) * (size_t)(*argc - i));
        (*argc)--;
        return true;
    }
    return false;
}

/* A limit of 1 and not 0: with 0 Linux still gives the core to the program of kernel.core_pattern,
 * with 1 it does not (do_coredump()). The hard limit stays, so that prlimit(1) can allow one. */
void process_forbid_cores(void) {
    struct rlimit core;

    if (getrlimit(RLIMIT_CORE, &core) < 0)
        return;
    core.rlim_cur = MIN((rlim_t)1, core.rlim_max);
    setrlimit(RLIMIT_CORE, &core);
}

/* Touches the stack ahead of time: if the machine is out of memory later, the stack cannot grow and
 * a callback that needs more ends the process. */
static void touch_stack(void) {
    volatile char stack[STACK_BYTES];

    for (size_t i = 0; i < sizeof(stack); i += 1024)
        stack[i] = 0;
}

int process_make_ready(void) {
    touch_stack();
    return file_work_start();
}

int process_name_key(int r, const char *key, struct err *err) {
    struct err e = *err;

    if (r < 0 && strncmp(e.message, key, strlen(key)) != 0)
        err_set(err, 0, key, "%s: %.350s", key, *e.message ? e.message : strerror(-r));
    return r;
}
