#include "api/limits/auth.h"

#include <assert.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "api/http/http.h"
#include "api/http/siphash.h"

/*
 * A presented key is compared with every known key, each over the full AUTH_KEY_MAX bytes, whether
 * or not an earlier one matched: the time tells how many keys there are, and nothing about them.
 * On reload tenants keep their numbers by name, because live requests carry them.
 */

void auth_init(struct auth *a, const char *file) {
    memset(a, 0, sizeof(*a));
    a->file = file;
}

void auth_deinit(struct auth *a) {
    if (a->keys)
        explicit_bzero(a->keys, a->n_keys * sizeof(*a->keys));
    free(a->keys);
    free(a->names);
    memset(a, 0, sizeof(*a));
}

/* Number of the tenant called @name; a new one for a name not seen before. */
static int tenant_of(struct auth *a, const char *name, uint32_t *out) {
    assert(strlen(name) < sizeof(*a->names));
    for (uint32_t i = 0; i < a->n_tenants; i++) {
        if (strcmp(a->names[i], name) == 0) {
            *out = i;
            return 0;
        }
    }
    if (!array_resize(&a->names, a->n_tenants + 1, sizeof(*a->names)))
        return -ENOMEM;
    snprintf(a->names[a->n_tenants], sizeof(*a->names), "%s", name);
    *out = a->n_tenants++;
    return 0;
}

/* One line of the file: nothing, `KEY` or `NAME:KEY`. */
static int add_line(struct auth *a, char *line, uint32_t number, struct err *err) {
    char name[64];

    line += strspn(line, " \t");
    line[strcspn(line, "\r\n")] = 0;
    for (size_t n = strlen(line); n && (line[n - 1] == ' ' || line[n - 1] == '\t');)
        line[--n] = 0;
    if (!*line || *line == '#')
        return 0;
    char *colon = strchr(line, ':'), *key = colon ? colon + 1 : line;
    size_t len = strlen(key), n_name = colon ? (size_t)(colon - line) : 0;
    if (len == 0 || len > AUTH_KEY_MAX || n_name >= sizeof(name) || strpbrk(key, " \t") ||
        a->n_keys == AUTH_KEYS_MAX)
        return err_set(err, 0, "api-keys",
                       "api-keys: line %u: must be NAME:KEY or KEY, the key of at most %d "
                       "characters without spaces, at most %d keys",
                       number, AUTH_KEY_MAX, AUTH_KEYS_MAX);
    if (n_name)
        snprintf(name, sizeof(name), "%.*s", (int)n_name, line);
    else
        snprintf(name, sizeof(name), "key-%u", a->n_keys + 1);
    if (!array_resize(&a->keys, a->n_keys + 1, sizeof(*a->keys)))
        return -ENOMEM;
    struct auth_key *k = &a->keys[a->n_keys];
    memset(k, 0, sizeof(*k));
    memcpy(k->key, key, len);
    k->len = (uint32_t)len;
    int r = tenant_of(a, name, &k->tenant);
    a->n_keys += r == 0;
    return r;
}

static int read_keys(struct auth *a, FILE *file, struct err *err) {
    char line[1024];
    uint32_t number = 0;
    int r = 0;

    while (r == 0 && fgets(line, sizeof(line), file)) {
        if (!strchr(line, '\n') && !feof(file))
            r = err_set(err, 0, "api-keys", "api-keys: line %u is too long", number + 1);
        else
            r = add_line(a, line, ++number, err);
    }
    explicit_bzero(line, sizeof(line));
    if (r == 0 && a->n_keys == 0)
        r = err_set(err, 0, "api-keys", "api-keys: the file contains no key");
    return r;
}

int auth_reload(struct auth *a, struct err *err) {
    struct auth next = {.file = a->file, .n_tenants = a->n_tenants};

    if (!a->file)
        return 0;
    FILE *file = fopen(a->file, "re");
    if (!file)
        return err_set(err, 0, "api-keys", "%s: cannot be read: %s", a->file, strerror(errno));
    if (a->n_tenants && !(next.names = reallocarray(NULL, a->n_tenants, sizeof(*next.names)))) {
        fclose(file);
        return -ENOMEM;
    }
    if (a->n_tenants)
        memcpy(next.names, a->names, a->n_tenants * sizeof(*next.names));
    int r = read_keys(&next, file, err);
    fclose(file);
    if (r < 0) {
        auth_deinit(&next);
        return r;
    }
    auth_deinit(a);
    *a = next;
    return 0;
}

/* Returns whether the keys are equal, in a time that does not depend on their content. */
static bool same_key(const struct auth_key *k, const uint8_t key[AUTH_KEY_MAX], uint32_t len) {
    volatile uint32_t diff = k->len ^ len;

    assert(k->len > 0 && k->len <= AUTH_KEY_MAX);

    for (int i = 0; i < AUTH_KEY_MAX; i++)
        diff |= (uint32_t)(k->key[i] ^ key[i]);
    return diff == 0;
}

static int refuse(struct err *err, const char *what) {
    return err_set_code(err, 401, "invalid_api_key", NULL, "%s", what);
}

int auth_check(const struct auth *a, const struct http *h, uint32_t *tenant, struct err *err) {
    uint32_t n_bearer, n_plain;
    const char *key = http_header(h, "authorization", &n_bearer);
    const char *plain = http_header(h, "x-api-key", &n_plain);
    uint8_t padded[AUTH_KEY_MAX] = {0};
    uint32_t found = 0;

    *tenant = 0;
    if (!a->file)
        return 0;
    assert(a->n_keys > 0);
    if (n_bearer + n_plain == 0)
        return refuse(err, "No API key was given. Send \"Authorization: Bearer KEY\".");
    if (n_bearer > 1 || n_plain > 1)
        return refuse(err, "More than one API key was given.");
    if (key && strncasecmp(key, "bearer ", 7) == 0)
        key += 7 + strspn(key + 7, " ");
    else
        key = plain;
    size_t len = key ? strlen(key) : 0;
    if (len == 0 || len > AUTH_KEY_MAX)
        return refuse(err, "Incorrect API key provided.");
    memcpy(padded, key, len);
    for (uint32_t i = 0; i < a->n_keys; i++) {
        bool same = same_key(&a->keys[i], padded, (uint32_t)len);

        found |= same;
        *tenant = same ? a->keys[i].tenant : *tenant;
    }
    explicit_bzero(padded, sizeof(padded));
    return found ? 0 : refuse(err, "Incorrect API key provided.");
}

/* Length of the host in "host", "host:port" or "[v6]:port". 0: malformed. */
static size_t host_length(const char *s) {
    size_t n = *s == '[' ? strcspn(s, "]") + 1 : strcspn(s, ":");
    size_t len = strlen(s);

    if (n > len || n == 0)
        return 0;
    return s[n] == 0 || (s[n] == ':' && strspn(s + n + 1, "0123456789") == len - n - 1) ? n : 0;
}

static bool names(const char *list_entry, const char *host, size_t n) {
    return strlen(list_entry) == n && strncasecmp(list_entry, host, n) == 0;
}

static bool is_loopback(int family, const unsigned char *address) {
    static const unsigned char v6[16] = {[15] = 1};

    return family == AF_INET ? address[0] == 127 : memcmp(address, v6, 16) == 0;
}

/* Loopback and configured names. For a Host header every literal address too (rebinding needs a
 * name), for an Origin only loopback ones: a page can come from an address as well. */
static bool is_known_host(const char *const *hosts, const char *host, bool literals) {
    unsigned char address[16];
    char text[64];
    size_t n = host_length(host);

    if (n == 0)
        return false;
    if (names("localhost", host, n) || (n > 10 && names(".localhost", host + n - 10, 10)))
        return true;
    if (n < sizeof(text)) {
        bool v6 = *host == '[';
        int family = v6 ? AF_INET6 : AF_INET;

        snprintf(text, sizeof(text), "%.*s", (int)(v6 ? n - 2 : n), host + v6);
        if (inet_pton(family, text, address) == 1 && (literals || is_loopback(family, address)))
            return true;
    }
    for (const char *const *h = hosts; h && *h; h++)
        if (strcmp(*h, "*") == 0 || names(*h, host, n))
            return true;
    return false;
}

bool auth_knows_origin(const char *const *hosts, const char *const *origins, const char *origin) {
    const char *name = strstr(origin, "://");

    for (const char *const *o = origins; o && *o; o++)
        if (strcmp(*o, "*") == 0 || strcasecmp(*o, origin) == 0)
            return true;
    return name && is_known_host(hosts, name + 3, false);
}

/* Our own page, at whatever address it was opened: the origin is the host that is asked, which is
 * known by then. */
static bool is_own_origin(const char *origin, const char *host) {
    const char *name = strstr(origin, "://");

    return host && name && strncmp(origin, "http", 4) == 0 && strcasecmp(name + 3, host) == 0;
}

bool auth_is_preflight(const struct http *h) {
    return h->parser.method == HTTP_OPTIONS &&
           http_header(h, "access-control-request-method", NULL);
}

int auth_check_host(const char *const *hosts, const char *const *origins, const struct http *h,
                    bool local, struct err *err) {
    uint32_t n_host, n_origin;
    const char *host = http_header(h, "host", &n_host);
    const char *origin = http_header(h, "origin", &n_origin);

    if (n_host > 1 || (n_host == 0 && h->parser.http_minor > 0))
        return err_set_code(err, 400, "bad_host", NULL, "Exactly one Host header is needed.");
    if (local)
        return 0;
    if (host && !is_known_host(hosts, host, true))
        return err_set_code(
            err, 421, "misdirected", NULL,
            "The Host of the request is not a name of this server (option allowed-hosts).");
    if (n_origin == 0 || (n_origin == 1 && is_own_origin(origin, host)))
        return 0;
    if (n_origin == 1 && auth_is_preflight(h))
        return 0; /* it gets no CORS headers, so that the browser refuses */
    if (n_origin > 1 || !auth_knows_origin(hosts, origins, origin))
        return err_set_code(err, 403, "forbidden_origin", NULL,
                            "Pages of this origin may not use the server (option cors-origins).");
    return 0;
}

/* ---- isolation keys ---- */

void auth_isolation_key(const uint64_t secret[2], const char name[AUTH_ISOLATION_NAME],
                        const char *salt, size_t len, uint8_t out[16]) {
    uint8_t text[AUTH_ISOLATION_NAME + 1024];
    size_t n = MIN(len, sizeof(text) - AUTH_ISOLATION_NAME);

    memcpy(text, name, AUTH_ISOLATION_NAME);
    if (n)
        memcpy(text + AUTH_ISOLATION_NAME, salt, n);
    for (int half = 0; half < 2; half++) {
        uint64_t key[2] = {secret[0] + (uint64_t)half, secret[1]};
        uint64_t h = siphash(key, text, AUTH_ISOLATION_NAME + n);

        memcpy(out + 8 * half, &h, 8);
    }
}
