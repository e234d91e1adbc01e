#pragma once

/*
 * auth - checks who may send requests: API keys, the Host and Origin headers.
 *
 * Keys come from a file, one `NAME:KEY` or `KEY` per line ('#' begins a comment line); keys with
 * one name belong to one tenant. `sha256$HEX` in the place of a key is its checksum. Behind it may
 * be `expires=YYYY-MM-DD`, its last day (UTC), and `operator`: it may see the requests of all
 * tenants. Only checksums are kept in memory; that of a presented key is compared with every known
 * one in constant time. Host names are checked against a list, or a page in a browser could reach a
 * daemon on loopback through a name of its own that resolves to 127.0.0.1; Origin is held to the
 * same list, but for that of our own page, which is the Host itself.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash_index.h"

struct http;

#define AUTH_KEY_MAX 256
#define AUTH_KEYS_MAX 4096
#define AUTH_ISOLATION_NAME 160

#define AUTH_SUM 65 /* a checksum in hexadecimal, with its NUL */

/* An API key. tenant is a number below auth.n_tenants. */
struct auth_key {
    /* sha256 of the key */
    char sum[AUTH_SUM];
    /* the last day on which it holds, "YYYY-MM-DD"; "": always */
    char expires[11];
    /* it may see what belongs to other tenants */
    bool is_operator;
    uint32_t tenant;
};

/* With a file there is at least one key once auth_reload() has succeeded. */
struct auth {
    /* NULL: no keys are asked for */
    const char *file;
    struct auth_key *keys;
    uint32_t n_keys, n_tenants;
    /* [n_tenants]; tenants keep their numbers over a reload */
    char (*names)[64];
    struct hash_index by_name;
    /* seconds since 1970; tests set it */
    int64_t (*now_s)(void);
};

/* Initialises @a without keys; auth_reload() reads them. @file, which outlives @a, may be NULL. */
void auth_init(struct auth *a, const char *file);
void auth_deinit(struct auth *a); /* the keys in memory are overwritten */
/* Reads the file of @a into *@out, which the caller passes to auth_deinit(); on any thread, since a
 * file may be slow, while nothing changes @a. Returns 0; -ENOMEM, or -errno with @err, which names
 * the line. */
int auth_read(struct auth *out, const struct auth *a, struct err *err);
/* Reads the file again. Returns as auth_read(); after an error the old keys stay in use. */
int auth_reload(struct auth *a, struct err *err);

/* Finds the request's key (Authorization: Bearer KEY, or x-api-key), which is valid until the file
 * is read again; NULL if no keys are required. Returns 0, or -EINVAL with @err, a 401. */
int auth_check(const struct auth *a, const struct http *h, const struct auth_key **out,
               struct err *err);
/* Makes the key under which prefixes are shared: one for each name (of a tenant or a group, padded
 * with zeros) and salt. It cannot be computed without the secret. ISOLATION_SALTED is set if there
 * is a salt. */
void auth_isolation_key(const uint64_t secret[2], const char name[AUTH_ISOLATION_NAME],
                        const char *salt, size_t len, uint8_t out[16]);
/* Returns true if pages of @origin may use the service: loopback, or one of @hosts or @origins.
 * Both lists end with NULL, or are NULL. */
bool auth_knows_origin(const char *const *hosts, const char *const *origins, const char *origin);
/* Returns true if the request is a browser's question whether a page may send a request (CORS
 * preflight). */
bool auth_is_preflight(const struct http *h);
/* Checks that Host is a loopback name, an address or one of @hosts, and Origin with
 * auth_knows_origin(). Returns 0, or -EINVAL with @err: 400, 403 or 421. @local: a UNIX socket,
 * which no browser reaches. */
int auth_check_host(const char *const *hosts, const char *const *origins, const struct http *h,
                    bool local, struct err *err);
