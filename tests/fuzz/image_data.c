/* Pictures in JSON: the result of image_data_read() is not longer than its input, and a refusal has
 * a reason that begins with its place. */

#include "api/generation/image_data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(freep) uint8_t *out = NULL;
    struct err err = {0};
    size_t n = 0;
    int r = image_data_read((const char *)data, len, "place", &out, &n, &err);

    if (r < 0) {
        FUZZ_ASSERT(!out && (r == -ENOMEM || (r == -EINVAL && err.status >= 400)));
        FUZZ_ASSERT(r == -ENOMEM || strncmp(err.message, "place: ", 7) == 0);
        return 0;
    }
    FUZZ_ASSERT(out && n > 0 && n <= len / 4 * 3 + 2);
    return 0;
}
