/* Addresses of pictures: an accepted one has https and a host of the list, whatever its form; a
 * refusal has a reason that begins with its place. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/generation/picture_fetch.h"
#include "base/util.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static const char *const hosts[] = {"a.example", "b.example:8443", NULL};
    const struct picture_fetch_opts o = {hosts, picture_fetch_is_public};
    CLEANUP(freep) char *url = strndup((const char *)data, len);
    struct err err = {0};

    FUZZ_ASSERT(url);
    int r = picture_fetch_check(&o, url, "place", &err);
    if (r < 0) {
        FUZZ_ASSERT(r == -EINVAL && err.status == 400 && strncmp(err.message, "place: ", 7) == 0);
        return 0;
    }
    FUZZ_ASSERT(picture_fetch_is_address(url, strlen(url)));
    FUZZ_ASSERT(strncasecmp(url, "https:", 6) == 0);
    /* A percent sign may escape letters of the host. */
    FUZZ_ASSERT(strcasestr(url, "a.example") || strcasestr(url, "b.example:") || strchr(url, '%'));
    return 0;
}
