#include "tests/fuzz/fuzz.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_fail(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
    abort();
}

static int memory_fd = -1;

int fuzz_file_fd(void) {
    if (memory_fd < 0)
        memory_fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_ASSERT(memory_fd >= 0);
    return memory_fd;
}

const char *fuzz_file(const void *data, size_t len) {
    static char path[64];
    int fd = fuzz_file_fd();

    FUZZ_ASSERT(ftruncate(fd, 0) == 0);
    FUZZ_ASSERT(pwrite(fd, data, len, 0) == (ssize_t)len);
    FUZZ_ASSERT(lseek(fd, 0, SEEK_SET) == 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return path;
}

char *fuzz_text(const void *data, size_t len) {
    char *text = malloc(len + 1);

    FUZZ_ASSERT(text);
    memcpy(text, data, len);
    text[len] = 0;
    return text;
}

int fuzz_add_json(struct buf *out, const char *text) {
    size_t at = out->len;
    int r = buf_add_str(out, text);

    for (; r == 0 && at < out->len; at++)
        if (out->data[at] == '\'')
            out->data[at] = '"';
    return r;
}

void fuzz_hang_up(int fd, int peer) {
    struct pollfd p = {.fd = peer, .events = POLLRDHUP};

    FUZZ_ASSERT(close(fd) == 0 && poll(&p, 1, 10000) == 1);
}

__attribute__((weak)) bool fuzz_seed(size_t, struct buf *);

bool fuzz_made(size_t i, struct buf *out) {
    return fuzz_seed && fuzz_seed(i, out);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64u << 20};

    if (*argc != 3 || strcmp((*argv)[1], "--seeds") != 0)
        return 0;
    for (size_t i = 0; fuzz_made(i, &b); i++, buf_clear(&b)) {
        char path[512];

        snprintf(path, sizeof(path), "%s/made-%zu", (*argv)[2], i);
        FILE *f = fopen(path, "wbe");
        FUZZ_ASSERT(f && fwrite(b.data, 1, b.len, f) == b.len && fclose(f) == 0);
    }
    exit(0);
}
