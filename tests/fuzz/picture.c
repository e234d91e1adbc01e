/* Pictures: a picture that picture_decode_fit() accepts has the size for the model; a refusal has a
 * reason on one line. Files pay for their pixels as in the daemon. All pictures are decoded in this
 * process. */

#include <errno.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "vision/fit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    uint64_t free_bytes = PICTURE_BYTES_FREE / 8; /* larger pictures take too long */
    const struct picture_fit fit = {.projector = {.kind = PROJECTOR_QWEN3VL,
                                                  .patch = 16,
                                                  .merge = 2,
                                                  .least = 1,
                                                  .most = 64,
                                                  .filter = FILTER_BICUBIC},
                                    .max_megapixels = 32,
                                    .free_bytes = &free_bytes};
    CLEANUP(picture_deinit) struct picture p = {0};
    struct picture_layout layout;
    struct err err = {0};
    int r = picture_decode_fit(data, len, &fit, &p, &layout, &err);

    FUZZ_ASSERT(free_bytes <= PICTURE_BYTES_FREE / 8);
    if (r < 0) {
        FUZZ_ASSERT(r == -ENOMEM || (r == -EINVAL && err.message[0]));
        FUZZ_ASSERT(!strchr(err.message, '\n') && !p.rgb);
        return 0;
    }
    FUZZ_ASSERT(picture_type(data, len) && p.rgb);
    FUZZ_ASSERT(p.width == layout.width && p.height == layout.height);
    return 0;
}
