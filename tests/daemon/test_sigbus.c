#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/worker/sigbus.h"

/* Returns the status from waitpid() of a process that runs @run. */
static int status_of(void (*run)(void)) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        run();
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return status;
}

static void read_behind_the_end(void) {
    int fd = memfd_create("cut", 0);

    sigbus_exit_with(42, "");
    if (ftruncate(fd, 8192) < 0)
        _exit(1);
    volatile char *p = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED || p[4096] != 0 || ftruncate(fd, 0) < 0)
        _exit(2);
    _exit(p[4096]);
}

static void raise_it(void) {
    sigbus_exit_with(42, "");
    raise(SIGBUS);
    raise(SIGBUS);
}

Test(sigbus, a_file_that_is_cut_off_ends_the_process_with_the_code) {
    int status = status_of(read_behind_the_end);

    cr_expect(WIFEXITED(status));
    cr_expect_eq(WEXITSTATUS(status), 42);
}

Test(sigbus, other_causes_end_it_by_the_signal) {
    int status = status_of(raise_it);

    cr_expect(WIFSIGNALED(status));
    cr_expect_eq(WTERMSIG(status), SIGBUS);
}
