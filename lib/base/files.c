#include "base/files.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/try.h"
#include "base/util.h"

#define WRITER_MS 1000 /* time to wait for a writer to open a FIFO */

void files_open_standard(void) {
    int fd;

    do {
        fd = open("/dev/null", O_RDONLY);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

bool files_flush(void) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "%s: writing the output failed: %s\n", program_invocation_short_name,
            errno ? strerror(errno) : "not all of it was written");
    return false;
}

/* Opens @path without waiting for the other end of a FIFO. Returns a descriptor or -errno. */
static int open_at_once(const char *path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    return fd;
}

/* Waits until @fd can be read. Returns 0 or -errno; -EAGAIN: no writer opened the FIFO, or it
 * writes nothing. */
static int files_await(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    int r;

    do
        r = poll(&p, 1, WRITER_MS);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;
    if (r == 0)
        return -EAGAIN;
    return 0;
}

bool files_is_folder(const char *path) {
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

FILE *files_open(const char *path) {
    int fd = open_at_once(path);
    FILE *file = NULL;

    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    int r = files_await(fd);
    if (r == 0 && fcntl(fd, F_SETFL, O_RDONLY) == 0)
        file = fdopen(fd, "r");
    if (r < 0)
        errno = -r;
    if (!file)
        close(fd); /* does not change errno */
    return file;
}

int files_create(int dir, const char *name, mode_t mode) {
    if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
        return -errno;
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);

    if (fd < 0)
        return -errno;
    return fd;
}

/* Adds the next bytes of @fd to @out. Returns their number, 0 at the end, or -errno. */
static int files_read_some(int fd, struct buf *out) {
    char chunk[4096];

    TRY(files_await(fd));
    ssize_t n = read(fd, chunk, sizeof(chunk));
    if (n < 0)
        return -errno;
    int r = buf_add(out, chunk, (size_t)n);
    explicit_bzero(chunk, sizeof(chunk)); /* the file may hold a key */
    if (r < 0) {
        if (r == -EMSGSIZE)
            return -EFBIG;
        return r;
    }
    return (int)n;
}

int files_read(const char *path, struct buf *out, mode_t *mode) {
    struct stat st = {0};
    int fd = open_at_once(path), r = fd;

    if (fd < 0)
        return fd;
    if (mode && fstat(fd, &st) == 0)
        *mode = st.st_mode;
    do
        r = files_read_some(fd, out);
    while (r > 0);
    close(fd);
    return r;
}

bool files_socket_folder(int place, char *out, size_t size) {
    static const struct {
        const char *var, *below;
    } roots[FILES_SOCKETS_N][2] = {
        [FILES_SOCKETS_RUNTIME] = {{"XDG_RUNTIME_DIR", "/weft"}},
        [FILES_SOCKETS_STATE] = {{"XDG_STATE_HOME", "/weft"}, {"HOME", "/.local/state/weft"}},
    };

    assert(place >= 0 && place < FILES_SOCKETS_N);
    for (size_t i = 0; i < ARRAY_SIZE(roots[place]) && roots[place][i].var; i++) {
        const char *root = getenv(roots[place][i].var);

        if (root && root[0] == '/')
            return (size_t)snprintf(out, size, "%s%s", root, roots[place][i].below) < size;
    }
    return false;
}

int files_make_folders(const char *path, mode_t mode) {
    char part[PATH_MAX];

    if ((size_t)snprintf(part, sizeof(part), "%s", path) >= sizeof(part))
        return -ENAMETOOLONG;
    for (char *p = strchr(part + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        if (mkdir(part, mode) < 0 && errno != EEXIST)
            return -errno;
        *p = '/';
    }
    return 0;
}

bool files_state_folder(char *out, size_t size) {
    const char *list = getenv("STATE_DIRECTORY");
    size_t n = list ? strcspn(list, ":") : 0;

    if (n == 0 || n >= size)
        return false;
    memcpy(out, list, n);
    out[n] = 0;
    return true;
}

void files_find_certificates(void) {
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Arch */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL, Amazon */
        "/etc/ssl/ca-bundle.pem",             /* SUSE */
        "/etc/ssl/cert.pem",
    };

    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        if (access(places[i], R_OK) != 0)
            continue;
        /* The first place is that of the libraries themselves. */
        if (i > 0)
            setenv("SSL_CERT_FILE", places[i], 0);
        return;
    }
}
