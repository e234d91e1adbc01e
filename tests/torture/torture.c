/*
 * torture - failing calls for weftd-torture, which is weftd linked with this file.
 *
 * The definitions below take the place of those of libc and jemalloc for the program and for every
 * library that it loads, because the dynamic linker looks into the executable first. Each asks
 * should_fail() and then calls the real function. tests/torture/run writes the calls that must fail
 * into a file that front, workers and next daemons map (struct torture_state), named by
 * WEFT_TORTURE. So a failure can be ordered at any moment, for one call of one place.
 *
 * A place (site) is a call with the TORTURE_DEPTH functions that led to it, in front or worker.
 * While torture_state.notes is set, every place that is reached is recorded with the number of its
 * calls.
 *
 * Calls that jemalloc makes for an allocation are not separate places; the allocation is the place.
 */

#undef _FILE_OFFSET_BITS /* defines open() and open64() as two functions */
#undef _FORTIFY_SOURCE

#include "torture.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODULES_MAX 128

#pragma GCC diagnostic ignored "-Wpedantic" /* dlsym() returns functions as object pointers */

static struct torture_state *state; /* NULL: nothing is recorded and nothing fails */
static char variable[4200];         /* "WEFT_TORTURE=FILE" for processes that are started */
static uint32_t role;
static struct module { uintptr_t begin, end; } modules[MODULES_MAX];
static uint32_t n_modules;
static _Thread_local bool inside; /* inside calls of this file or of the allocator */

/* Returns an address as the number of its module and the offset from its beginning, which does not
 * depend on where the module is mapped. */
static uint64_t place_of(void *address) {
    uintptr_t a = (uintptr_t)address;

    for (uint32_t i = 0; i < n_modules; i++)
        if (a >= modules[i].begin && a < modules[i].end)
            return (uint64_t)i << 40 | (a - modules[i].begin);
    return 0;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *ctx) {
    uintptr_t end = 0;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t e = info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;

        if (info->dlpi_phdr[i].p_type == PT_LOAD && e > end)
            end = e;
    }
    if (n_modules < MODULES_MAX)
        modules[n_modules++] = (struct module){info->dlpi_addr, info->dlpi_addr + end};
    return 0;
}

/* Runs after the constructors of all libraries, whose failures do not concern weftd. */
__attribute__((constructor)) static void begin(int argc, char **argv) {
    const char *path = getenv("WEFT_TORTURE");
    void *warm[2];

    if (!path)
        return;
    inside = true;
    role = argc > 1 && strcmp(argv[1], "--worker") == 0;
    snprintf(variable, sizeof(variable), "WEFT_TORTURE=%s", path);
    dl_iterate_phdr(add_module, NULL);
    backtrace(warm, 2); /* the first call loads the unwinder */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *p =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        abort();
    close(fd);
    state = p;
    if (role == 1)
        atomic_store(&state->live[role], 0);
    inside = false;
}

/* ---- places ---- */

/* Returns the kind of @fd, since the errors of files and sockets differ. */
static uint32_t kind_of(int fd) {
    struct stat s;

    if (fd < 0 || fstat(fd, &s) < 0)
        return KIND_NONE;
    return S_ISREG(s.st_mode) ? KIND_FILE : S_ISSOCK(s.st_mode) ? KIND_SOCKET : KIND_OTHER;
}

static uint64_t hash_stack(uint32_t call, const uint64_t *stack) {
    uint64_t h = (uint64_t)call << 1 | role;

    for (int i = 0; i < TORTURE_DEPTH; i++) {
        h = (h ^ stack[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h ? h : 1;
}

static void note(uint64_t hash, uint32_t call, int fd, const uint64_t *stack) {
    for (uint32_t i = 0; i < TORTURE_SITES; i++) {
        struct torture_site *s = &state->site[(hash + i) % TORTURE_SITES];
        uint64_t empty = 0;

        if (atomic_compare_exchange_strong(&s->hash, &empty, hash)) {
            s->call = call;
            s->role = role;
            s->kind = kind_of(fd);
            memcpy(s->stack, stack, sizeof(s->stack));
        } else if (empty != hash) {
            continue;
        }
        atomic_fetch_add(&s->n, 1);
        return;
    }
}

/* Takes one of the calls that must fail. */
static bool take(void) {
    if (atomic_load(&state->lasts)) {
        atomic_fetch_add(&state->hits, 1);
        return true;
    }
    uint32_t left = atomic_load(&state->left);
    while (left > 0)
        if (atomic_compare_exchange_weak(&state->left, &left, left - 1)) {
            atomic_fetch_add(&state->hits, left == 1);
            return left == 1;
        }
    return false;
}

/* Returns the errno with which this call must fail, or 0. @fd: -1: the call has none. */
static int should_fail(uint32_t call, int fd) {
    uint64_t stack[TORTURE_DEPTH] = {0};
    void *address[TORTURE_DEPTH + 2];

    if (!state || inside)
        return 0;
    bool notes = atomic_load(&state->notes);
    bool mine = atomic_load(&state->call) == call && atomic_load(&state->roles) >> role & 1;
    if (!notes && !mine)
        return 0;
    int e = errno;
    inside = true;
    uint64_t target = atomic_load(&state->target);
    uint64_t hash = 0;
    if (notes || target) {
        int n = backtrace(address, TORTURE_DEPTH + 2);

        for (int i = 2; i < n; i++)
            stack[i - 2] = place_of(address[i]);
        hash = hash_stack(call, stack);
    }
    if (notes)
        note(hash, call, fd, stack);
    bool fails = mine && (!target || target == hash) &&
                 (!state->file_kind || state->file_kind == kind_of(fd)) && take();
    inside = false;
    errno = e;
    return fails ? (int)state->error : 0;
}

/* Returns the real function @name of the next library. */
static void *next(void **real, const char *name) {
    if (!*real)
        *real = dlsym(RTLD_NEXT, name);
    return *real;
}

#define REAL(name)                                                                                 \
    static void *real_##name;                                                                      \
    __typeof__(&name) call_##name = (__typeof__(&name))next(&real_##name, #name)

/* Defines @name, which on a failure sets errno and returns @bad. */
#define CALL(ret, bad, name, fd, params, args)                                                     \
    ret name params {                                                                              \
        REAL(name);                                                                                \
        int e = should_fail(CALL_##name, fd);                                                      \
                                                                                                   \
        if (e)                                                                                     \
            return errno = e, bad;                                                                 \
        return call_##name args;                                                                   \
    }

/* Defines @name, which returns its error. */
#define CALL_RETURNS(name, params, args)                                                           \
    int name params {                                                                              \
        REAL(name);                                                                                \
        int e = should_fail(CALL_##name, -1);                                                      \
                                                                                                   \
        return e ? e : call_##name args;                                                           \
    }

/* Defines @name, which may also transfer one byte only (TORTURE_SHORT). */
#define CALL_BYTES(name, fd, n, params, args)                                                      \
    ssize_t name params {                                                                          \
        REAL(name);                                                                                \
        int e = should_fail(CALL_##name, fd);                                                      \
                                                                                                   \
        if (e && e != TORTURE_SHORT)                                                               \
            return errno = e, -1;                                                                  \
        if (e && n > 1)                                                                            \
            n = 1;                                                                                 \
        return call_##name args;                                                                   \
    }

/* ---- memory ---- */

static void count_live(int n) {
    if (state)
        atomic_fetch_add(&state->live[role], n);
}

#define ALLOCATE(name, params, args)                                                               \
    void *name params {                                                                            \
        REAL(name);                                                                                \
        bool was = inside;                                                                         \
                                                                                                   \
        if (should_fail(CALL_##name, -1))                                                          \
            return errno = ENOMEM, NULL;                                                           \
        inside = true;                                                                             \
        void *p = call_##name args;                                                                \
        inside = was;                                                                              \
        count_live(p != NULL);                                                                     \
        return p;                                                                                  \
    }

ALLOCATE(malloc, (size_t n), (n))
ALLOCATE(calloc, (size_t n, size_t size), (n, size))
ALLOCATE(aligned_alloc, (size_t align, size_t n), (align, n))
ALLOCATE(memalign, (size_t align, size_t n), (align, n))

int posix_memalign(void **out, size_t align, size_t n) {
    REAL(posix_memalign);
    bool was = inside;

    if (should_fail(CALL_posix_memalign, -1))
        return ENOMEM;
    inside = true;
    int r = call_posix_memalign(out, align, n);
    inside = was;
    count_live(r == 0);
    return r;
}

void *realloc(void *p, size_t n) {
    REAL(realloc);
    bool was = inside;

    if (should_fail(CALL_realloc, -1))
        return errno = ENOMEM, NULL;
    inside = true;
    void *q = call_realloc(p, n);
    inside = was;
    count_live((q != NULL && p == NULL) - (q == NULL && p != NULL && n == 0));
    return q;
}

void free(void *p) {
    REAL(free);
    bool was = inside;

    inside = true;
    call_free(p);
    inside = was;
    count_live(-(p != NULL));
}

CALL(void *, MAP_FAILED, mmap, -1, (void *p, size_t n, int prot, int flags, int fd, off_t at),
     (p, n, prot, flags, fd, at))
CALL(void *, MAP_FAILED, mmap64, -1, (void *p, size_t n, int prot, int flags, int fd, off64_t at),
     (p, n, prot, flags, fd, at))
CALL(int, -1, mprotect, -1, (void *p, size_t n, int prot), (p, n, prot))
CALL(int, -1, madvise, -1, (void *p, size_t n, int how), (p, n, how))
CALL(int, -1, memfd_create, -1, (const char *name, unsigned flags), (name, flags))

/* ---- descriptors ---- */

CALL_BYTES(read, fd, n, (int fd, void *p, size_t n), (fd, p, n))
CALL_BYTES(write, fd, n, (int fd, const void *p, size_t n), (fd, p, n))
CALL_BYTES(pread, fd, n, (int fd, void *p, size_t n, off_t at), (fd, p, n, at))
CALL_BYTES(pread64, fd, n, (int fd, void *p, size_t n, off64_t at), (fd, p, n, at))
CALL_BYTES(pwrite, fd, n, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at))
CALL_BYTES(pwrite64, fd, n, (int fd, const void *p, size_t n, off64_t at), (fd, p, n, at))
CALL_BYTES(send, fd, n, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))
CALL_BYTES(recv, fd, n, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))
CALL_BYTES(sendfile64, in, n, (int out, int in, off64_t *at, size_t n), (out, in, at, n))
CALL(ssize_t, -1, readv, fd, (int fd, const struct iovec *v, int n), (fd, v, n))
CALL(ssize_t, -1, sendmsg, fd, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
CALL(ssize_t, -1, recvmsg, fd, (int fd, struct msghdr *m, int flags), (fd, m, flags))
CALL(int, -1, fsync, fd, (int fd), (fd))
CALL(int, -1, fdatasync, fd, (int fd), (fd))
CALL(int, -1, ftruncate, fd, (int fd, off_t n), (fd, n))
CALL(int, -1, ftruncate64, fd, (int fd, off64_t n), (fd, n))
CALL(int, -1, fallocate64, fd, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n))
CALL(int, -1, fstat64, fd, (int fd, struct stat64 *s), (fd, s))
CALL(int, -1, flock, fd, (int fd, int how), (fd, how))
CALL(int, -1, fchmod, fd, (int fd, mode_t mode), (fd, mode))
CALL(off64_t, -1, lseek64, fd, (int fd, off64_t at, int whence), (fd, at, whence))
CALL(int, -1, dup, fd, (int fd), (fd))
CALL(int, -1, dup2, fd, (int fd, int to), (fd, to))
CALL(int, -1, dup3, fd, (int fd, int to, int flags), (fd, to, flags))
CALL(int, -1, pipe2, -1, (int fd[2], int flags), (fd, flags))
CALL(int, -1, eventfd, -1, (unsigned n, int flags), (n, flags))
CALL(int, -1, epoll_create1, -1, (int flags), (flags))
CALL(int, -1, epoll_ctl, fd, (int ep, int op, int fd, struct epoll_event *ev), (ep, op, fd, ev))
CALL(int, -1, epoll_wait, -1, (int ep, struct epoll_event *ev, int n, int ms), (ep, ev, n, ms))
CALL(int, -1, epoll_pwait, -1, (int ep, struct epoll_event *ev, int n, int ms, const sigset_t *s),
     (ep, ev, n, ms, s))
CALL(int, -1, poll, -1, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))

ssize_t writev(int fd, const struct iovec *v, int n) {
    REAL(writev);
    struct iovec one = {n > 0 ? v[0].iov_base : NULL, n > 0 && v[0].iov_len > 0};
    int e = should_fail(CALL_writev, fd);

    if (e && e != TORTURE_SHORT)
        return errno = e, -1;
    return e && one.iov_len ? call_writev(fd, &one, 1) : call_writev(fd, v, n);
}

/* Closes the descriptor in any case, as Linux does. */
int close(int fd) {
    REAL(close);
    int e = should_fail(CALL_close, fd);
    int r = call_close(fd);

    return e ? errno = e, -1 : r;
}

#define CALL_FCNTL(name)                                                                           \
    int name(int fd, int op, ...) {                                                                \
        REAL(name);                                                                                \
        va_list ap;                                                                                \
        int e = should_fail(CALL_##name, fd);                                                      \
                                                                                                   \
        if (e)                                                                                     \
            return errno = e, -1;                                                                  \
        va_start(ap, op);                                                                          \
        void *arg = va_arg(ap, void *);                                                            \
        va_end(ap);                                                                                \
        return call_##name(fd, op, arg);                                                           \
    }

CALL_FCNTL(fcntl)
CALL_FCNTL(fcntl64)

int ioctl(int fd, unsigned long op, ...) {
    REAL(ioctl);
    va_list ap;
    int e = should_fail(CALL_ioctl, fd);

    if (e)
        return errno = e, -1;
    va_start(ap, op);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    return call_ioctl(fd, op, arg);
}

/* ---- sockets ---- */

CALL(int, -1, socket, -1, (int domain, int type, int protocol), (domain, type, protocol))
CALL(int, -1, socketpair, -1, (int domain, int type, int protocol, int fd[2]),
     (domain, type, protocol, fd))
CALL(int, -1, bind, fd, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
CALL(int, -1, listen, fd, (int fd, int n), (fd, n))
CALL(int, -1, connect, fd, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
CALL(int, -1, accept4, fd, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
CALL(int, -1, accept, fd, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
CALL(int, -1, shutdown, fd, (int fd, int how), (fd, how))
CALL(int, -1, getsockname, fd, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
CALL(int, -1, getpeername, fd, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
CALL(int, -1, getsockopt, fd, (int fd, int l, int o, void *v, socklen_t *n), (fd, l, o, v, n))
CALL(int, -1, setsockopt, fd, (int fd, int l, int o, const void *v, socklen_t n), (fd, l, o, v, n))

/* ---- files by name ---- */

#define CALL_OPEN(name)                                                                            \
    int name(const char *path, int flags, ...) {                                                   \
        REAL(name);                                                                                \
        va_list ap;                                                                                \
        int e = should_fail(CALL_##name, -1);                                                      \
                                                                                                   \
        if (e)                                                                                     \
            return errno = e, -1;                                                                  \
        va_start(ap, flags);                                                                       \
        mode_t mode = va_arg(ap, mode_t);                                                          \
        va_end(ap);                                                                                \
        return call_##name(path, flags, mode);                                                     \
    }

CALL_OPEN(open)
CALL_OPEN(open64)

int openat64(int dir, const char *path, int flags, ...) {
    REAL(openat64);
    va_list ap;
    int e = should_fail(CALL_openat64, -1);

    if (e)
        return errno = e, -1;
    va_start(ap, flags);
    mode_t mode = va_arg(ap, mode_t);
    va_end(ap);
    return call_openat64(dir, path, flags, mode);
}

CALL(FILE *, NULL, fopen, -1, (const char *path, const char *mode), (path, mode))
CALL(FILE *, NULL, fopen64, -1, (const char *path, const char *mode), (path, mode))
CALL(int, -1, stat64, -1, (const char *path, struct stat64 *s), (path, s))
CALL(int, -1, lstat64, -1, (const char *path, struct stat64 *s), (path, s))
CALL(int, -1, fstatat64, -1, (int dir, const char *path, struct stat64 *s, int flags),
     (dir, path, s, flags))
CALL(int, -1, access, -1, (const char *path, int mode), (path, mode))
CALL(int, -1, mkdir, -1, (const char *path, mode_t mode), (path, mode))
CALL(int, -1, rename, -1, (const char *from, const char *to), (from, to))
CALL(int, -1, renameat, -1, (int a, const char *from, int b, const char *to), (a, from, b, to))
CALL(int, -1, unlink, -1, (const char *path), (path))
CALL(ssize_t, -1, readlink, -1, (const char *path, char *p, size_t n), (path, p, n))
CALL(DIR *, NULL, opendir, -1, (const char *path), (path))
CALL(char *, NULL, getcwd, -1, (char *p, size_t n), (p, n))

/* Marks a stream as one with an error (_IO_ERR_SEEN), as a failed read() of libc would. */
static void spoil(FILE *f, int e) {
    f->_flags |= 0x20;
    errno = e;
}

size_t fread(void *p, size_t size, size_t n, FILE *f) {
    REAL(fread);
    int e = should_fail(CALL_fread, -1);

    return e ? spoil(f, e), 0 : call_fread(p, size, n, f);
}

char *fgets(char *p, int n, FILE *f) {
    REAL(fgets);
    int e = should_fail(CALL_fgets, -1);

    return e ? spoil(f, e), NULL : call_fgets(p, n, f);
}

size_t fwrite(const void *p, size_t size, size_t n, FILE *f) {
    REAL(fwrite);
    int e = should_fail(CALL_fwrite, -1);

    return e ? spoil(f, e), 0 : call_fwrite(p, size, n, f);
}

int fclose(FILE *f) {
    REAL(fclose);
    int e = should_fail(CALL_fclose, -1);
    int r = call_fclose(f);

    return e ? errno = e, EOF : r;
}

/* ---- processes, threads, clocks ---- */

CALL(pid_t, -1, fork, -1, (void), ())
CALL(pid_t, -1, waitpid, -1, (pid_t pid, int *status, int flags), (pid, status, flags))
CALL(int, -1, kill, -1, (pid_t pid, int signum), (pid, signum))
CALL(ssize_t, -1, getrandom, -1, (void *p, size_t n, unsigned flags), (p, n, flags))
CALL(int, -1, getrlimit64, -1, (__rlimit_resource_t what, struct rlimit64 *l), (what, l))
CALL(int, -1, setrlimit64, -1, (__rlimit_resource_t what, const struct rlimit64 *l), (what, l))
CALL(int, -1, sched_getaffinity, -1, (pid_t pid, size_t n, cpu_set_t *set), (pid, n, set))
CALL(int, -1, setpriority, -1, (__priority_which_t which, id_t who, int nice), (which, who, nice))
CALL(int, -1, sigaction, -1, (int s, const struct sigaction *a, struct sigaction *old), (s, a, old))
CALL(int, -1, nanosleep, -1, (const struct timespec *t, struct timespec *left), (t, left))
CALL_RETURNS(pthread_create,
             (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *ctx),
             (t, a, f, ctx))
CALL_RETURNS(posix_spawn,
             (pid_t * pid, const char *path, const posix_spawn_file_actions_t *a,
              const posix_spawnattr_t *s, char *const argv[], char *const env[]),
             (pid, path, a, s, argv, env))

int prctl(int op, ...) {
    REAL(prctl);
    va_list ap;
    unsigned long a[4];
    int e = should_fail(CALL_prctl, -1);

    if (e)
        return errno = e, -1;
    va_start(ap, op);
    for (int i = 0; i < 4; i++)
        a[i] = va_arg(ap, unsigned long);
    va_end(ap);
    return call_prctl(op, a[0], a[1], a[2], a[3]);
}

long syscall(long nr, ...) {
    REAL(syscall);
    va_list ap;
    long a[6];
    int e = should_fail(CALL_syscall, -1);

    if (e)
        return errno = e, -1;
    va_start(ap, nr);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    return call_syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* libuv starts workers and next daemons by this function, with the environment that they are
 * given. */
int execvp(const char *file, char *const argv[]) {
    REAL(execvp);
    char *env[256];
    int n = 0, e = should_fail(CALL_execvp, -1);

    if (e)
        return errno = e, -1;
    for (; state && environ && environ[n] && n < 254; n++)
        env[n] = environ[n];
    env[n] = state ? variable : NULL;
    env[n + 1] = NULL;
    if (state)
        environ = env;
    return call_execvp(file, argv);
}

/* Clocks that jump. */
int clock_gettime(clockid_t id, struct timespec *t) {
    REAL(clock_gettime);
    int r = call_clock_gettime(id, t);

    if (r == 0 && state)
        t->tv_sec += id == CLOCK_REALTIME    ? atomic_load(&state->realtime_s)
                     : id == CLOCK_MONOTONIC ? atomic_load(&state->monotonic_s)
                                             : 0;
    return r;
}
