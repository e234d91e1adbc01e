#pragma once

/*
 * curl_again - the handle for the next transfer. Before 8.1.1 libcurl (Debian 12 has 7.88.1) keeps
 * a pointer to the last header of a handle's answer after it has freed it, and writes to it when
 * the next answer begins with a folded header (curl issue 11101). So a server could damage the
 * memory of its client, unless each transfer has a handle of its own.
 */

#include <curl/curl.h>
#include <stdbool.h>

/* Returns whether a handle may be used for more than one transfer. */
static inline bool curl_may_reuse(void) {
    return curl_version_info(CURLVERSION_NOW)->version_num >= 0x080101;
}

/* Returns @c without its options, or a new handle in its place, which it frees. @c may be NULL.
 * NULL: no memory. */
static inline CURL *curl_again(CURL *c) {
    if (c && curl_may_reuse()) {
        curl_easy_reset(c);
        return c;
    }
    curl_easy_cleanup(c);
    return curl_easy_init();
}
