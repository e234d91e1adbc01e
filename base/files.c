#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#define WRITER_MS 1000 /* for a writer to open a FIFO */

void files_open_standard(void) {
    int fd;

    do {
        fd = open("/dev/null", O_RDONLY);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

FILE *files_open(const char *path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct pollfd p = {fd, POLLIN, 0};
    FILE *file = NULL;
    int r;

    if (fd < 0)
        return NULL;
    do
        r = poll(&p, 1, WRITER_MS);
    while (r < 0 && errno == EINTR);
    if (r == 0)
        errno = EAGAIN;
    else if (r > 0 && fcntl(fd, F_SETFL, O_RDONLY) == 0)
        file = fdopen(fd, "r");
    if (!file)
        close(fd); /* which leaves errno as it is */
    return file;
}
