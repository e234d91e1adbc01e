/*
 * dead_mount - the file system of a server that is away, for LD_PRELOAD: as soon as the file
 * $WEFT_DEAD_MOUNT.away exists, opening a file whose path begins with $WEFT_DEAD_MOUNT, or asking
 * for its state, never returns.
 */

#undef _FILE_OFFSET_BITS /* both kinds of names are replaced */
#ifndef _LARGEFILE64_SOURCE
#define _LARGEFILE64_SOURCE
#endif

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool dead_mount_is_away(const char *path) {
    const char *mount = getenv("WEFT_DEAD_MOUNT");
    char file[4096];

    if (!mount || strncmp(path, mount, strlen(mount)) != 0)
        return false;
    snprintf(file, sizeof(file), "%s.away", mount);
    return syscall(SYS_access, file, F_OK) == 0;
}

static void dead_mount_wait(const char *path) {
    while (dead_mount_is_away(path))
        usleep(10000);
}

static int dead_mount_open(const char *path, int flags, va_list ap) {
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, int) : 0;

    dead_mount_wait(path);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list ap;

    va_start(ap, flags);
    int fd = dead_mount_open(path, flags, ap);
    va_end(ap);
    return fd;
}

int open64(const char *path, int flags, ...) {
    va_list ap;

    va_start(ap, flags);
    int fd = dead_mount_open(path, flags | O_LARGEFILE, ap);
    va_end(ap);
    return fd;
}

int stat(const char *path, struct stat *out) {
    dead_mount_wait(path);
    return fstatat(AT_FDCWD, path, out, 0);
}

int stat64(const char *path, struct stat64 *out) {
    dead_mount_wait(path);
    return fstatat64(AT_FDCWD, path, out, 0);
}
