/* Answers of the picture decoder's process, which a malicious picture may have taken over. The
 * bytes come through a socket; the first one says whether the pixels are fitted to a model. */

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/printable.h"
#include "tests/fuzz/fuzz.h"
#include "vision/decoder_private.h"

#define SIDE_MAX 2048 /* larger answers take too long */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    uint64_t free_bytes = 1 << 20;
    const struct picture_fit fit = {.projector = {.kind = PROJECTOR_QWEN3VL,
                                                  .patch = 16,
                                                  .merge = 2,
                                                  .least = 1,
                                                  .most = 64,
                                                  .filter = FILTER_BICUBIC},
                                    .max_megapixels = 32,
                                    .free_bytes = &free_bytes};
    CLEANUP(picture_deinit) struct picture p = {0};
    struct decoder_answer a = {0};
    struct picture_layout layout = {0};
    struct err err = {0};
    bool fits = len > 0 && data[0] & 1;
    int fd[2];

    if (len < 1 || len > 1 << 16)
        return -1;
    memcpy(&a, data + 1, MIN(len - 1, sizeof(a)));
    if (a.result >= 0 && (a.width > SIDE_MAX || a.height > SIDE_MAX) && a.width < UINT32_MAX / 2)
        return -1;
    FUZZ_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
    FUZZ_ASSERT(write(fd[1], data + 1, len - 1) == (ssize_t)len - 1);
    close(fd[1]);
    int r = decoder_read_answer(fd[0], fits ? &fit : NULL, &p, &layout, INT64_MAX, &err);
    close(fd[0]);
    FUZZ_ASSERT(free_bytes <= 1 << 20 && is_printable(err.message));
    if (r < 0) {
        FUZZ_ASSERT(r == -ENOMEM || r == -EINVAL || r == -EPIPE);
        FUZZ_ASSERT(r != -EINVAL || err.message[0]);
        return 0;
    }
    FUZZ_ASSERT(p.rgb && (!fits || (p.width == layout.width && p.height == layout.height)));
    return 0;
}

bool fuzz_seed(size_t i, struct buf *out) {
    static const struct decoder_answer answers[] = {
        {.width = 4, .height = 3, .free_bytes = 7},
        {.result = -EINVAL, .message = "not a picture\n\x1b[31m"},
        {.result = -EINVAL},
        {.width = 0, .height = 1},
        {.width = UINT32_MAX, .height = UINT32_MAX},
    };

    if (i >= 2 * ARRAY_SIZE(answers))
        return false;
    FUZZ_ASSERT(buf_add_char(out, (char)(i % 2)) == 0);
    FUZZ_ASSERT(buf_add(out, &answers[i / 2], sizeof(answers[0])) == 0);
    for (int k = 0; k < 64 * 64 * 3 && i < 2; k++)
        FUZZ_ASSERT(buf_add_char(out, (char)k) == 0);
    return true;
}
