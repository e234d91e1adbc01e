#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/worker/sandbox.h"

#define NONE 255 /* exit status if the kernel has no filters */

static void *nothing(void *arg) {
    return arg;
}

/* Returns whether the process may do what libcuda does at its start, a listening abstract socket,
 * and may not reach the socket of another process. */
static bool driver_can_start(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int n = snprintf(at.sun_path + 1, sizeof(at.sun_path) - 1, "cuda-uvmfd-test-%d", getpid());
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);

    return bind(fd, (struct sockaddr *)&at, size) == 0 && listen(fd, 16) == 0 &&
           connect(socket(AF_UNIX, SOCK_SEQPACKET, 0), (struct sockaddr *)&at, size) == -1 &&
           errno == EPERM;
}

/* Returns the permissions of the sandboxed child, one in each bit. */
static int look_around(void) {
    char *argv[] = {"true", NULL};
    pthread_t thread;
    int pair[2], bad = 0;
    char text[4];

    if (sandbox_worker() < 0)
        return NONE;
    bad |= socket(AF_INET, SOCK_STREAM, 0) != -1 || errno != EPERM ? 1 : 0;
    bad |= socket(AF_INET6, SOCK_DGRAM, 0) != -1 || errno != EPERM ? 2 : 0;
    bad |= execv("/bin/true", argv) != -1 || errno != EPERM ? 4 : 0;
    bad |= !driver_can_start() ? 8 : 0;
    bad |= socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 ? 16 : 0;
    int fd = memfd_create("slots", 0); /* stands for the file of the disk tier */
    bad |= ftruncate(fd, 100) != 0 || pwrite(fd, "page", 4, 90) != 4 ? 64 : 0;
    bad |= pread(fd, text, 4, 90) != 4 || text[3] != 'e' ? 128 : 0;
    bad |= pthread_create(&thread, NULL, nothing, NULL) != 0 ? 32 : 0;
    return bad;
}

Test(sandbox, refuses_network_and_programs_and_nothing_a_worker_needs) {
    int status;
    pid_t pid = fork();

    cr_assert(pid >= 0);
    if (pid == 0)
        _exit(look_around());
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == NONE)
        cr_skip_test("this kernel has no system call filters");
    cr_expect_eq(WEXITSTATUS(status), 0, "%d", WEXITSTATUS(status));
}

/* Ends a process without _exit(): AddressSanitizer then looks for leaks, which the filter must
 * allow. Without that sanitizer the test cannot fail. */
Test(sandbox, lets_a_worker_end) {
    int status;
    pid_t pid = fork();

    cr_assert(pid >= 0);
    if (pid == 0) {
        sandbox_worker();
        exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d", status);
}
