/*
 * decoder_main - the process that decodes. It reads no byte of a picture itself, so a harmful
 * picture can only affect its child. A call that is not listed fails with EPERM and does not end
 * the child, since a library may try a call that it can do without.
 */

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vision/decoder_private.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* Sanitizers map terabytes and need calls that are not listed. */
#if defined(ARCH) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CONFINED 1
#else
#define CONFINED 0
#endif

#if CONFINED

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
/* Allows call @nr; the filter continues with any other call. */
#define ALLOW_CALL(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, 1), ALLOW
/* Refuses calls of another architecture and of x32, which have other numbers. */
#define ONLY_ARCH LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0), REFUSE, LOAD(nr)
/* Calls that memory allocation, stopping and the C library need. mmap() can only map memory, since
 * the child has no file to map. */
#define ALLOW_MEMORY                                                                               \
    ALLOW_CALL(SYS_mmap), ALLOW_CALL(SYS_munmap), ALLOW_CALL(SYS_mremap),                          \
        ALLOW_CALL(SYS_mprotect), ALLOW_CALL(SYS_madvise), ALLOW_CALL(SYS_brk),                    \
        ALLOW_CALL(SYS_futex), ALLOW_CALL(SYS_read), ALLOW_CALL(SYS_write),                        \
        ALLOW_CALL(SYS_rt_sigreturn), ALLOW_CALL(SYS_rt_sigprocmask),                              \
        ALLOW_CALL(SYS_clock_gettime), ALLOW_CALL(SYS_exit), ALLOW_CALL(SYS_exit_group)

static struct sock_filter child_calls[] = {ONLY_ARCH, ALLOW_MEMORY, REFUSE};

static struct sock_filter process_calls[] = {
    ONLY_ARCH,
    ALLOW_MEMORY,
    ALLOW_CALL(SYS_recvmsg),
    ALLOW_CALL(SYS_close),
    ALLOW_CALL(SYS_clone),
    ALLOW_CALL(SYS_set_robust_list),
    ALLOW_CALL(SYS_gettid),
    ALLOW_CALL(SYS_prlimit64),
    ALLOW_CALL(SYS_prctl),
    REFUSE,
};

static bool filter_calls(struct sock_filter *code, size_t n) {
    const struct sock_fprog filter = {(unsigned short)n, code};

    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

#endif

static bool set_limit(int resource, rlim_t to) {
    const struct rlimit limit = {to, to};

    return setrlimit(resource, &limit) == 0;
}

/* Removes all rights from a child that decoding does not need. */
static bool confine_child(void) {
    bool ok = set_limit(RLIMIT_CPU, DECODER_SECONDS) && set_limit(RLIMIT_NOFILE, 0);

#if CONFINED
    ok = ok && set_limit(RLIMIT_AS, DECODER_MEMORY) &&
         filter_calls(child_calls, ARRAY_SIZE(child_calls));
#endif
    return ok;
}

/* Reads or writes @n bytes. Returns false if the caller has closed the socket. */
static bool decoder_main_move_bytes(int fd, bool out, void *data, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t r;

        if (out)
            r = write(fd, (char *)data + at, n - at);
        else
            r = read(fd, (char *)data + at, n - at);

        if (r > 0)
            at += (size_t)r;
        else if (r == 0 || errno != EINTR)
            return false;
    }
    return true;
}

/* Decodes one picture in a child, which then ends. */
static void decode_one(int fd) {
    struct decoder_request q;
    struct decoder_answer a = {0};
    struct fitter f = {0};
    struct err err = {0};

    if (!confine_child() || !decoder_main_move_bytes(fd, false, &q, sizeof(q)) ||
        q.len > PICTURE_FILE_MAX)
        return;
    uint8_t *file = malloc(q.len + 1);
    if (!file || !decoder_main_move_bytes(fd, false, file, q.len))
        return;
    f.fit = q.fits ? &q.fit : NULL;
    q.fit.free_bytes = q.counts ? &q.free_bytes : NULL;
    a.result = picture_decode_rows(file, q.len, &f, &err);
    if (a.result == -ENOMEM)
        err_set(&err, 0, NULL, "the picture needs more than %llu MiB to be decoded",
                DECODER_MEMORY >> 20);
    snprintf(a.message, sizeof(a.message), "%s", err.message);
    a.width = f.width;
    a.height = f.height;
    a.free_bytes = q.free_bytes;
    if (decoder_main_move_bytes(fd, true, &a, sizeof(a)) && a.result == 0)
        decoder_main_move_bytes(fd, true, f.out.rgb, picture_bytes(f.out.width, f.out.height));
}

/* Waits for the socket of the next picture. Returns -1 if the caller has closed the channel, -2 for
 * a message without a socket. */
static int receive_fd(void) {
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    ssize_t n;
    int fd = -2;

    while ((n = recvmsg(DECODER_FD, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (n <= 0)
        return -1;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(fd)))
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

static bool confine_process(void) {
    bool ok = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_DUMPABLE, 0) == 0 &&
              set_limit(RLIMIT_CORE, 0) && syscall(__NR_close_range, DECODER_FD + 1, ~0u, 0) == 0;

    for (int fd = 0; fd < DECODER_FD; fd++)
        close(fd);
#if CONFINED
    ok = ok && filter_calls(process_calls, ARRAY_SIZE(process_calls));
#endif
    return ok;
}

int decoder_main(void) {
    int fd;

    signal(SIGCHLD, SIG_IGN); /* children need not be waited for */
    if (!confine_process())
        return 1;
    while ((fd = receive_fd()) != -1) {
        if (fd < 0)
            continue;
        pid_t pid = fork();
        if (pid == 0) {
            close(DECODER_FD);
            decode_one(fd);
            _exit(0);
        }
        close(fd); /* if there is no child, the caller reads the end of the socket */
    }
    return 0;
}
