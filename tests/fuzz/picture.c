/* Pictures: what picture_decode() lets through has all its pixels and can be resized; what it
 * refuses has a reason on one line. Nothing is decoded in another process here. */

#include <errno.h>
#include <string.h>
#include "tests/fuzz/fuzz.h"
#include "vision/resize.h"

#define SMALL 256u /* pixels of a side that is resized: larger ones take too long */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(picture_deinit) struct picture p = {0};
    CLEANUP(picture_deinit) struct picture q = {0};
    struct err err = {0};
    int r = picture_decode(data, len, &p, &err);

    if (r < 0) {
        FUZZ_ASSERT(r == -ENOMEM || (r == -EINVAL && err.message[0]));
        FUZZ_ASSERT(!strchr(err.message, '\n') && !p.rgb);
        return 0;
    }
    FUZZ_ASSERT(picture_type(data, len) && p.width <= PICTURE_SIDE_MAX);
    FUZZ_ASSERT(p.height <= PICTURE_SIDE_MAX);
    if (p.width <= SMALL && p.height <= SMALL)
        FUZZ_ASSERT(picture_resize(&p, p.height, p.width, FILTER_BICUBIC, &q, &err) == 0);
    return 0;
}
