#pragma once

/*
 * torture - the file by which tests/torture/run orders failures of weftd-torture and reads the
 * calls that were made. The script parses the list of calls below, and knows the layout.
 */

#include <stdatomic.h>
#include <stdint.h>

#define TORTURE_SITES 32768
#define TORTURE_DEPTH 12   /* number of functions that distinguish places */
#define TORTURE_SHORT 1000 /* used like an errno: transfer one byte only */

/* The calls that can fail. */
enum {
    CALL_NONE,
    CALL_malloc,
    CALL_calloc,
    CALL_realloc,
    CALL_aligned_alloc,
    CALL_memalign,
    CALL_posix_memalign,
    CALL_accept,
    CALL_accept4,
    CALL_access,
    CALL_bind,
    CALL_close,
    CALL_connect,
    CALL_dup,
    CALL_dup2,
    CALL_dup3,
    CALL_epoll_create1,
    CALL_epoll_ctl,
    CALL_epoll_pwait,
    CALL_epoll_wait,
    CALL_eventfd,
    CALL_execvp,
    CALL_fallocate64,
    CALL_fchmod,
    CALL_fclose,
    CALL_fcntl,
    CALL_fcntl64,
    CALL_fdatasync,
    CALL_fgets,
    CALL_flock,
    CALL_fopen,
    CALL_fopen64,
    CALL_fork,
    CALL_fread,
    CALL_fstat64,
    CALL_fstatat64,
    CALL_fsync,
    CALL_ftruncate,
    CALL_ftruncate64,
    CALL_fwrite,
    CALL_getcwd,
    CALL_getpeername,
    CALL_getrandom,
    CALL_getrlimit64,
    CALL_getsockname,
    CALL_getsockopt,
    CALL_ioctl,
    CALL_kill,
    CALL_listen,
    CALL_lseek64,
    CALL_lstat64,
    CALL_madvise,
    CALL_memfd_create,
    CALL_mkdir,
    CALL_mmap,
    CALL_mmap64,
    CALL_mprotect,
    CALL_nanosleep,
    CALL_open,
    CALL_open64,
    CALL_openat64,
    CALL_opendir,
    CALL_pipe2,
    CALL_poll,
    CALL_posix_spawn,
    CALL_prctl,
    CALL_pread,
    CALL_pread64,
    CALL_pthread_create,
    CALL_pwrite,
    CALL_pwrite64,
    CALL_read,
    CALL_readlink,
    CALL_readv,
    CALL_recv,
    CALL_recvmsg,
    CALL_rename,
    CALL_renameat,
    CALL_sched_getaffinity,
    CALL_send,
    CALL_sendfile64,
    CALL_sendmsg,
    CALL_setpriority,
    CALL_setrlimit64,
    CALL_setsockopt,
    CALL_shutdown,
    CALL_sigaction,
    CALL_socket,
    CALL_socketpair,
    CALL_stat64,
    CALL_syscall,
    CALL_unlink,
    CALL_waitpid,
    CALL_write,
    CALL_writev
};

/* Kinds of descriptors. */
enum { KIND_NONE, KIND_FILE, KIND_SOCKET, KIND_OTHER };

/* A call and the functions that led to it: @stack has the innermost one first, each with the number
 * of its module in the upper bits and the offset in the module in the lower 40. */
struct torture_site {
    /* 0: a free place of the table */
    _Atomic uint64_t hash;
    /* role 0: front, 1: worker */
    uint32_t call, role;
    /* kind of the first call's descriptor */
    uint32_t kind;
    /* number of calls */
    _Atomic uint32_t n;
    uint64_t stack[TORTURE_DEPTH];
};

struct torture_state {
    /* site that must fail; 0: any site with the call */
    _Atomic uint64_t target;
    /* call that must fail; 0: none */
    _Atomic uint32_t call;
    /* bit mask: 1: calls of the front, 2: calls of workers */
    _Atomic uint32_t roles;
    /* number of calls until the one that fails */
    _Atomic uint32_t left;
    /* 1: all further calls fail as well */
    _Atomic uint32_t lasts;
    /* only calls with a descriptor of this kind; 0: any */
    _Atomic uint32_t file_kind;
    /* errno, or TORTURE_SHORT */
    _Atomic uint32_t error;
    /* number of calls that have failed */
    _Atomic uint32_t hits;
    /* 1: sites are recorded */
    _Atomic uint32_t notes;
    /* seconds by which clocks are ahead */
    _Atomic int64_t realtime_s;
    _Atomic int64_t monotonic_s;
    /* number of allocations that were not freed, by role */
    _Atomic int64_t live[2];
    struct torture_site site[TORTURE_SITES];
};
