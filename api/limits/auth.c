/*
 * The checksum of a presented key is compared with that of every known key, each over its full
 * length, whether or not an earlier one matched: the time depends on the number of keys alone.
 * On reload tenants keep their numbers by name, because live requests carry them.
 */

#include "api/limits/auth.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "api/http/http.h"
#include "api/http/siphash.h"
#include "base/files.h"
#include "base/log.h"
#include "base/loop_bytes.h"
#include "base/printable.h"
#include "base/sha256.h"
#include "base/try.h"
#include "proto/messages.h"

#define HASHED "sha256$"
#define SHORT_KEY 12 /* characters; who tries all shorter ones finds one */

static int64_t system_now_s(void) {
    return time(NULL);
}

void auth_init(struct auth *a, const char *file) {
    memset(a, 0, sizeof(*a));
    a->now_s = system_now_s;
    a->file = file;
}

void auth_deinit(struct auth *a) {
    if (a->keys)
        explicit_bzero(a->keys, a->n_keys * sizeof(*a->keys));
    free(a->keys);
    free(a->names);
    hash_index_deinit(&a->by_name);
    memset(a, 0, sizeof(*a));
}

/* Sets *out to the number of the tenant called @name; a name not seen before gets a new number. */
static int auth_tenant(struct auth *a, const char *name, uint32_t *out) {
    uint32_t hash = hash_text(name);

    assert(strlen(name) < sizeof(*a->names));
    HASH_INDEX_EACH(a->by_name, hash, i) {
        loop_items(1);
        if (strcmp(a->names[i], name) == 0) {
            *out = i;
            return 0;
        }
    }
    if (!array_resize(&a->names, a->n_tenants + 1, sizeof(*a->names)))
        return -ENOMEM;
    TRY(hash_index_add(&a->by_name, hash, a->n_tenants));
    snprintf(a->names[a->n_tenants], sizeof(*a->names), "%s", name);
    *out = a->n_tenants++;
    return 0;
}

static void auth_sum(const char *key, size_t len, char out[AUTH_SUM]) {
    struct sha256 s;

    sha256_init(&s);
    sha256_add(&s, key, len);
    sha256_hex(&s, out);
    explicit_bzero(&s, sizeof(s));
}

/* Returns true if @s is a date, "YYYY-MM-DD". */
static bool is_date(const char *s) {
    static const char form[] = "0000-00-00";
    struct tm tm = {0};

    for (size_t i = 0; i < sizeof(form); i++)
        if (form[i] == '0' ? s[i] < '0' || s[i] > '9' : s[i] != form[i])
            return false;
    tm.tm_year = atoi(s) - 1900;
    tm.tm_mon = atoi(s + 5) - 1;
    tm.tm_mday = atoi(s + 8);
    int month = tm.tm_mon, day = tm.tm_mday;
    timegm(&tm); /* changes a date that does not exist */
    return tm.tm_mon == month && tm.tm_mday == day;
}

/* Takes a word that follows a key: `expires=DATE` or `operator`, each once. */
static bool auth_read_word(const char *word, struct auth_key *row) {
    if (strcmp(word, "operator") == 0 && !row->is_operator) {
        row->is_operator = true;
        return true;
    }
    if (*row->expires || strncmp(word, "expires=", 8) != 0 || !is_date(word + 8))
        return false;
    memcpy(row->expires, word + 8, sizeof(row->expires));
    return true;
}

/* Takes the words off the end of the key @text. Returns false if one of them is not known. */
static bool auth_read_words(char *text, struct auth_key *row) {
    char *rest = NULL;

    text += strcspn(text, " \t");
    if (!*text)
        return true;
    *text++ = 0;
    for (char *word = strtok_r(text, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest))
        if (!auth_read_word(word, row))
            return false;
    return true;
}

/* Sets @out to the checksum of @key, or to the checksum that @key is. Returns false if it is
 * neither. */
static bool set_sum(const char *key, char out[AUTH_SUM]) {
    size_t n = strlen(HASHED);

    if (strncmp(key, HASHED, n) != 0) {
        auth_sum(key, strlen(key), out);
        return true;
    }
    if (strlen(key + n) != AUTH_SUM - 1 || strspn(key + n, "0123456789abcdef") != AUTH_SUM - 1)
        return false;
    memcpy(out, key + n, AUTH_SUM);
    return true;
}

/* Returns true if a line before has the key of @row with another meaning: only one of them would
 * count, and the key would stay valid when that line is removed. */
static bool auth_is_repeated(const struct auth *a, const struct auth_key *row) {
    for (uint32_t i = 0; i < a->n_keys; i++) {
        const struct auth_key *k = &a->keys[i];

        if (memcmp(k->sum, row->sum, sizeof(k->sum)) == 0)
            return k->tenant != row->tenant || k->is_operator != row->is_operator ||
                   strcmp(k->expires, row->expires) != 0;
    }
    return false;
}

/* Reads one line of the file: nothing, `KEY` or `NAME:KEY`, and perhaps words about it. */
static int auth_add_line(struct auth *a, char *line, uint32_t number, struct err *err) {
    char name[64];

    line += strspn(line, " \t");
    line[strcspn(line, "\r\n")] = 0;
    for (size_t n = strlen(line); n && (line[n - 1] == ' ' || line[n - 1] == '\t');)
        line[--n] = 0;
    if (!*line || *line == '#')
        return 0;
    char *colon = strchr(line, ':'), *key = colon ? colon + 1 : line;
    struct auth_key row = {0};
    bool known = auth_read_words(key, &row) && set_sum(key, row.sum);
    size_t len = strlen(key), n_name = colon ? (size_t)(colon - line) : 0;
    if (len == 0 || len > AUTH_KEY_MAX || n_name >= sizeof(name) || !known ||
        a->n_keys == AUTH_KEYS_MAX)
        return err_set(err, 0, "api-keys",
                       "api-keys: %.150s:%u: must be NAME:KEY or KEY (weftctl key new NAME FILE "
                       "adds such a line). A key has at most %d characters and no spaces, and may "
                       "be followed by expires=YYYY-MM-DD and operator; a file has at most %d",
                       a->file, number, AUTH_KEY_MAX, AUTH_KEYS_MAX);
    if (n_name)
        snprintf(name, sizeof(name), "%.*s", (int)n_name, line);
    else
        snprintf(name, sizeof(name), "key-%u", a->n_keys + 1);
    if (!is_printable(name))
        return err_set(err, 0, "api-keys",
                       "api-keys: %.150s:%u: NAME must be text in UTF-8 without control characters",
                       a->file, number);
    if (!array_resize(&a->keys, a->n_keys + 1, sizeof(*a->keys)))
        return -ENOMEM;
    if (len < SHORT_KEY && strncmp(key, HASHED, strlen(HASHED)) != 0)
        log_event(WLOG_WARN, "short_key",
                  "name=%s characters=%zu reason=\"too short: weftctl key new makes a safe one\"",
                  quoted(name).s, len);
    TRY(auth_tenant(a, name, &row.tenant));
    if (auth_is_repeated(a, &row))
        return err_set(err, 0, "api-keys",
                       "api-keys: %.150s:%u: a line above has this key, with another name or other "
                       "words behind it: remove one of them",
                       a->file, number);
    a->keys[a->n_keys++] = row;
    return 0;
}

static int read_keys(struct auth *a, FILE *file, struct err *err) {
    char line[1024];
    uint32_t number = 0;
    int r = 0;

    while (r == 0 && fgets(line, sizeof(line), file)) {
        if (!strchr(line, '\n') && !feof(file))
            r = err_set(err, 0, "api-keys",
                        "api-keys: %.150s:%u: is longer than %zu bytes or contains a NUL", a->file,
                        number + 1, sizeof(line) - 2);
        else
            r = auth_add_line(a, line, ++number, err);
    }
    explicit_bzero(line, sizeof(line));
    TRY(r);
    if (ferror(file)) { /* keys that were not read would be refused */
        r = -errno;
        err_set(err, 0, "api-keys", "api-keys: %s: cannot be read: %s", a->file, strerror(-r));
        return r;
    }
    if (a->n_keys == 0)
        return err_set(err, 0, "api-keys",
                       "api-keys: %.150s: contains no key: weftctl key new NAME FILE adds one",
                       a->file);
    return 0;
}

/* Takes over the names of @a, whose tenants keep their numbers. Returns 0 or -ENOMEM. */
static int auth_copy_names(struct auth *next, const struct auth *a) {
    uint32_t number;

    for (uint32_t i = 0; i < a->n_tenants; i++)
        TRY(auth_tenant(next, a->names[i], &number));
    return 0;
}

/* Reads @file into @next, where names that @a has stay what they are. */
static int read_named_keys(struct auth *next, const struct auth *a, FILE *file, struct err *err) {
    TRY(auth_copy_names(next, a));
    return read_keys(next, file, err);
}

int auth_read(struct auth *out, const struct auth *a, struct err *err) {
    struct auth next = {.file = a->file, .now_s = a->now_s};

    if (!a->file) {
        *out = next;
        return 0;
    }
    FILE *file = files_open(a->file);

    if (!file) {
        int r = -errno;

        err_set(err, 0, "api-keys", "%s: cannot be read: %s", a->file, strerror(-r));
        return r;
    }
    int r = read_named_keys(&next, a, file, err);
    fclose(file);
    if (r < 0) {
        auth_deinit(&next);
        return r;
    }
    *out = next;
    return 0;
}

int auth_reload(struct auth *a, struct err *err) {
    struct auth next;

    TRY(auth_read(&next, a, err));
    auth_deinit(a);
    *a = next;
    return 0;
}

/* Returns true if the sums are equal, in a time that does not depend on their content. */
static bool auth_same_key(const struct auth_key *k, const char sum[AUTH_SUM]) {
    volatile uint32_t diff = 0;

    for (int i = 0; i < AUTH_SUM; i++)
        diff |= (uint32_t)(k->sum[i] ^ sum[i]);
    return diff == 0;
}

/* Returns true if the last day of @k is over. */
static bool is_expired(const struct auth *a, const struct auth_key *k) {
    time_t now = (time_t)a->now_s();
    char today[11];
    struct tm tm;

    strftime(today, sizeof(today), "%Y-%m-%d", gmtime_r(&now, &tm));
    return *k->expires && strcmp(today, k->expires) > 0;
}

static int auth_refuse(struct err *err, const char *what) {
    return err_set_code(err, 401, "invalid_api_key", NULL, "%s", what);
}

int auth_check(const struct auth *a, const struct http *h, const struct auth_key **out,
               struct err *err) {
    uint32_t n_bearer, n_plain;
    const char *key = http_header(h, "authorization", &n_bearer);
    const char *plain = http_header(h, "x-api-key", &n_plain);
    const struct auth_key *found = NULL;
    char sum[AUTH_SUM];

    *out = NULL;
    if (!a->file)
        return 0;
    assert(a->n_keys > 0);
    bool bearer = key && strncasecmp(key, "bearer ", 7) == 0;
    if (!bearer && n_plain == 0)
        return auth_refuse(err, "No API key was given. Send \"Authorization: Bearer KEY\".");
    if (n_bearer > 1 || n_plain > 1)
        return auth_refuse(err, "More than one API key was given.");
    if (bearer)
        key += 7 + strspn(key + 7, " ");
    else
        key = plain;
    size_t len = key ? strlen(key) : 0;
    if (len == 0 || len > AUTH_KEY_MAX)
        return auth_refuse(err, "Incorrect API key provided.");
    auth_sum(key, len, sum);
    for (uint32_t i = 0; i < a->n_keys; i++)
        found = auth_same_key(&a->keys[i], sum) ? &a->keys[i] : found;
    if (!found)
        return auth_refuse(err, "Incorrect API key provided.");
    if (is_expired(a, found))
        return err_set_code(err, 401, "expired_api_key", NULL,
                            "The API key expired at the end of %s (UTC): ask the operator for "
                            "another.",
                            found->expires);
    *out = found;
    return 0;
}

/* Returns the length of the host in "host", "host:port" or "[v6]:port"; 0 if it is malformed. */
static size_t host_length(const char *s) {
    size_t n;
    size_t len = strlen(s);

    if (*s == '[')
        n = strcspn(s, "]") + 1;
    else
        n = strcspn(s, ":");

    if (n > len || n == 0)
        return 0;
    if (s[n] == 0 || (s[n] == ':' && strspn(s + n + 1, "0123456789") == len - n - 1))
        return n;
    return 0;
}

static bool names(const char *list_entry, const char *host, size_t n) {
    return strlen(list_entry) == n && strncasecmp(list_entry, host, n) == 0;
}

static bool auth_is_loopback(int family, const unsigned char *address) {
    static const unsigned char v6[16] = {[15] = 1};

    if (family == AF_INET)
        return address[0] == 127;
    return memcmp(address, v6, 16) == 0;
}

/* Returns true for loopback and configured names. @literals: also for every literal address, as in
 * a Host header, because DNS rebinding needs a name. In an Origin only loopback addresses are
 * known: a hostile page can come from an address as well. */
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
        if (inet_pton(family, text, address) == 1 &&
            (literals || auth_is_loopback(family, address)))
            return true;
    }
    for (const char *const *h = hosts; h && *h; h++)
        if (strcmp(*h, "*") == 0 || names(*h, host, n))
            return true;
    return false;
}

/* Returns true if @host, which may have a port, is an IPv4 address. */
static bool is_ipv4(const char *host) {
    size_t n = host_length(host);
    struct in_addr address;
    char text[16];

    if (n >= sizeof(text))
        return false;
    snprintf(text, sizeof(text), "%.*s", (int)n, host);
    return inet_pton(AF_INET, text, &address) == 1;
}

/* Returns true if @host is the beginning of an IPv4 address and a star: "192.168.*". */
static bool is_network(const char *host) {
    size_t n = strspn(host, "0123456789.");

    return n > 0 && host[n] == '*';
}

/* Returns true if @origin is @entry, in which one * may stand for any characters. A network stands
 * for addresses alone: everyone can have a name such as 192.168.example.com. */
static bool fits_origin(const char *entry, const char *origin) {
    const char *star = strchr(entry, '*'), *host = strstr(entry, "://");

    if (!star)
        return strcasecmp(entry, origin) == 0;
    size_t before = (size_t)(star - entry), after = strlen(star + 1), n = strlen(origin);

    if (n < before + after || strncasecmp(origin, entry, before) != 0 ||
        strcasecmp(origin + n - after, star + 1) != 0)
        return false;
    if (!host || !is_network(host + 3))
        return true;
    return is_ipv4(origin + (host + 3 - entry));
}

bool auth_knows_origin(const char *const *hosts, const char *const *origins, const char *origin) {
    const char *name = strstr(origin, "://");

    for (const char *const *o = origins; o && *o; o++)
        if (fits_origin(*o, origin))
            return true;
    return name && is_known_host(hosts, name + 3, false);
}

/* Returns true if @origin is the host that is asked, as for this server's own page. The host is
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
    const char *authority = http_header(h, ":authority", NULL);
    const char *origin = http_header(h, "origin", &n_origin);

    if (n_host > 1 || (n_host == 0 && h->parser.http_minor > 0))
        return err_set_code(err, 400, "bad_host", NULL,
                            "The request must have exactly one Host header, not %u.", n_host);
    if (local)
        return 0;
    host = authority ? authority : host;
    if (host && !is_known_host(hosts, host, true))
        return err_set_code(
            err, 421, "misdirected", NULL,
            "The Host of the request is not a name of this server (option allowed-hosts).");
    if (n_origin == 0 || (n_origin == 1 && is_own_origin(origin, host)))
        return 0;
    if (n_origin == 1 && auth_is_preflight(h))
        return 0; /* sends no CORS headers, so that the browser refuses */
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
    out[15] = (uint8_t)((out[15] & ~ISOLATION_SALTED) | (len > 0 ? ISOLATION_SALTED : 0));
}
