/*
 * The filter lists refused calls, not allowed ones, because the libraries of a device driver need
 * undocumented calls. It complements the unit's own filter and also applies when weftd is started
 * by hand. A model file or a request that takes over the worker can then neither connect to a
 * network nor start a program.
 */

#include "daemon/worker/sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/util.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
/* Refuses call @nr; the filter continues with any other call. */
#define REFUSE_CALL(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, 1), REFUSE

int sandbox_worker(void) {
#ifdef ARCH
    static struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        REFUSE,
        LOAD(nr),
#ifdef __x86_64__
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1),
        REFUSE, /* refuses the numbers of x32 */
#endif
        REFUSE_CALL(SYS_execve),
        REFUSE_CALL(SYS_execveat),
#ifndef __SANITIZE_ADDRESS__ /* the sanitizer looks for leaks with ptrace() when the worker ends */
        REFUSE_CALL(SYS_ptrace),
#endif
        REFUSE_CALL(SYS_process_vm_readv),
        REFUSE_CALL(SYS_process_vm_writev),
        REFUSE_CALL(SYS_io_uring_setup),
        REFUSE_CALL(SYS_connect),
        REFUSE_CALL(SYS_mount),
        REFUSE_CALL(SYS_bpf),
        REFUSE_CALL(SYS_keyctl),
        /* Allows only sockets between processes of this machine, which logging and driver helpers
         * use. They may be bound and listened on: libcuda does so with an abstract one
         * (cuda-uvmfd-...), and without it finds no device. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0),
        REFUSE,
        ALLOW,
    };
    const struct sock_fprog filter = {ARRAY_SIZE(code), code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0)
        return -errno;
    return 0;
#else
    return -ENOSYS;
#endif
}
