#pragma once

/*
 * picture_fetch - gets pictures from addresses in requests, by libcurl, from the hosts that the
 * operator allows. Off unless the option picture-hosts names some.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"

#define PICTURE_FETCH_MS 10000 /* time for one picture, name lookup included */

struct picture_fetch_opts {
    /* HOST or HOST:PORT, NULL-terminated; without a port: 443 */
    const char *const *hosts;
    /* Returns whether a connection to the address may be made: picture_fetch_is_public(), and other
     * functions in tests, which are then also allowed http://. */
    bool (*may_connect)(const struct sockaddr *a);
};

/* Returns whether @a is an address of the Internet: neither loopback, private, link-local,
 * multicast nor reserved, nor one that stands for an IPv4 address. */
bool picture_fetch_is_public(const struct sockaddr *a);
/* Returns whether @s, of @len bytes, is an address and not data. */
bool picture_fetch_is_address(const char *s, size_t len);
/* Returns whether any address is fetched. */
static inline bool picture_fetch_is_on(const struct picture_fetch_opts *o) {
    return o->hosts && *o->hosts;
}
/* Checks the address without connecting. Returns 0, -ENOMEM, or a 400 about @place. */
int picture_fetch_check(const struct picture_fetch_opts *o, const char *url, const char *place,
                        struct err *err);
/* Fetches @url: at most PICTURE_FILE_MAX bytes, within PICTURE_FETCH_MS, without redirects. *out is
 * the caller's. Blocks its thread, and ends early in a job that is abandoned (job_pause()). Returns
 * 0, -ENOMEM, -ECANCELED, or an error about @place. */
int picture_fetch(const struct picture_fetch_opts *o, const char *url, const char *place,
                  uint8_t **out, size_t *n, struct err *err);
/* Returns 0, or -EINVAL with @err where @hosts are set and libcurl cannot be used. */
int picture_fetch_check_hosts(const char *const *hosts, struct err *err);
