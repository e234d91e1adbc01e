#include "api/generation/picture_fetch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#ifdef HAVE_CURL
#include "api/http/curl_calls.h"
#endif
#include "base/buf.h"
#include "base/jobs.h"
#include "base/try.h"
#include "base/util.h"
#include "vision/picture.h"

/*
 * A request's address must not reach hosts that only this machine can reach. So libcurl's own
 * parser reads it, and the parsed form, not the text, is compared and used: two parsers could
 * understand it differently. The IP address is checked where its socket is made, so a name that
 * resolves differently a moment later gains nothing; if one address of a name is refused, all later
 * ones are. Redirects are not followed, and proxies of the environment are not used.
 */

static const struct {
    uint32_t net, bits;
} not_public[] = {
    {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},  {0xA9FE0000, 16},
    {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24}, {0xC0586300, 24}, {0xC0A80000, 16},
    {0xC6120000, 15}, {0xC6336400, 24}, {0xCB007100, 24}, {0xE0000000, 3},
};

static bool is_public_v4(uint32_t a) {
    for (size_t i = 0; i < ARRAY_SIZE(not_public); i++)
        if ((a ^ not_public[i].net) >> (32 - not_public[i].bits) == 0)
            return false;
    return true;
}

/* Returns true for an address in 2000::/3, from which public addresses are given out, except
 * Teredo's, the documentation's networks and 6to4. */
static bool is_public_v6(const uint8_t a[16]) {
    uint32_t first = (uint32_t)a[0] << 24 | (uint32_t)a[1] << 16 | (uint32_t)a[2] << 8 | a[3];

    return first >> 29 == 1 && first >> 9 != 0x20010000 >> 9 && first != 0x20010DB8 &&
           first >> 16 != 0x2002 && first >> 12 != 0x3FFF0000 >> 12;
}

bool picture_fetch_is_public(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return is_public_v4(ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr));
    return a->sa_family == AF_INET6 &&
           is_public_v6(((const struct sockaddr_in6 *)a)->sin6_addr.s6_addr);
}

bool picture_fetch_is_address(const char *s, size_t len) {
    return (len > 5 && strncasecmp(s, "http:", 5) == 0) ||
           (len > 6 && strncasecmp(s, "https:", 6) == 0);
}

static int picture_fetch_refuse(struct err *err, const char *place, const char *why) {
    return err_set_code(err, 400, "invalid_image_url", place, "%s: %s.", place, why);
}

#ifdef HAVE_CURL

/* Holds one transfer. */
struct transfer {
    const struct picture_fetch_opts *opts;
    struct buf body;
    bool refused, too_large, no_memory;
};

/* Returns true if the list has @host with @port; an entry without a port allows 443. */
static bool picture_fetch_is_allowed(const struct picture_fetch_opts *o, const char *host,
                                     const char *port) {
    char both[300];
    int n = snprintf(both, sizeof(both), "%s:%s", host, port);

    for (size_t i = 0; o->hosts && o->hosts[i] && n > 0 && (size_t)n < sizeof(both); i++)
        if (strcasecmp(o->hosts[i], both) == 0 ||
            (strcmp(port, "443") == 0 && strcasecmp(o->hosts[i], host) == 0))
            return true;
    return false;
}

static bool picture_fetch_has(const struct curl_calls *curl, CURLU *u, CURLUPart part) {
    char *v = NULL;
    bool is = curl->url_get(u, part, &v, 0) == CURLUE_OK;

    curl->free(v);
    return is;
}

/* Parses and checks the address. Returns 0 with *out, -ENOMEM, or a 400. */
static int picture_fetch_parse(const struct curl_calls *curl, const struct picture_fetch_opts *o,
                               const char *url, const char *place, CURLU **out, struct err *err) {
    char *scheme = NULL, *host = NULL, *port = NULL;
    if (!curl)
        return picture_fetch_refuse(err, place, "this service has no libcurl and fetches nothing");
    CURLU *u = curl->url();
    int r = 0;

    if (!u)
        return -ENOMEM;
    if (curl->url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK ||
        curl->url_get(u, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
        curl->url_get(u, CURLUPART_HOST, &host, 0) != CURLUE_OK)
        r = picture_fetch_refuse(err, place, "it is not a valid address");
    else if (strcmp(scheme, "https") != 0 &&
             (strcmp(scheme, "http") != 0 || o->may_connect == picture_fetch_is_public))
        r = picture_fetch_refuse(err, place, "only addresses with https:// are fetched");
    else if (picture_fetch_has(curl, u, CURLUPART_USER) ||
             picture_fetch_has(curl, u, CURLUPART_PASSWORD) ||
             picture_fetch_has(curl, u, CURLUPART_ZONEID))
        r = picture_fetch_refuse(
            err, place, "an address with a user's name, a password or a zone is not fetched");
    else if (curl->url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) != CURLUE_OK ||
             !picture_fetch_is_allowed(o, host, port))
        r = picture_fetch_refuse(
            err, place,
            "pictures are not fetched from this host (option picture-hosts): send the "
            "picture itself as a data URI with base64");
    curl->free(scheme);
    curl->free(host);
    curl->free(port);
    if (r == 0)
        *out = u;
    else
        curl->url_cleanup(u);
    return r;
}

int picture_fetch_check(const struct picture_fetch_opts *o, const char *url, const char *place,
                        struct err *err) {
    const struct curl_calls *curl = curl_calls("picture-hosts", NULL);
    CURLU *u = NULL;
    int r = picture_fetch_parse(curl, o, url, place, &u, err);

    if (u)
        curl->url_cleanup(u);
    return r;
}

/* libcurl's callback: makes the socket for an address if a connection to it is allowed. */
static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *a) {
    struct transfer *t = ctx;

    t->refused |= purpose != CURLSOCKTYPE_IPCXN || !t->opts->may_connect(&a->addr);
    if (t->refused)
        return CURL_SOCKET_BAD;
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t picture_fetch_on_body(char *data, size_t size, size_t n, void *ctx) {
    struct transfer *t = ctx;

    t->too_large = n > PICTURE_FILE_MAX - t->body.len;
    t->no_memory = !t->too_large && buf_add(&t->body, data, n) < 0;
    if (t->too_large || t->no_memory)
        return 0;
    return n;
}

static int picture_fetch_on_progress(void *ctx, curl_off_t n_in, curl_off_t in, curl_off_t n_out,
                                     curl_off_t out) {
    return job_pause() < 0;
}

static bool set_options(const struct curl_calls *curl, CURL *c, CURLU *u, struct transfer *t) {
    const char *trusted = getenv("SSL_CERT_FILE");
    bool ok = curl->easy_setopt(c, CURLOPT_CURLU, u) == CURLE_OK;

    ok &= curl->easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") ==
          CURLE_OK; /* picture_fetch_parse() checks */
    ok &= curl->easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_PROXY, "") == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)PICTURE_FETCH_MS) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_MAXFILESIZE, (long)PICTURE_FILE_MAX) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_OPENSOCKETDATA, t) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_WRITEFUNCTION, picture_fetch_on_body) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_WRITEDATA, t) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_XFERINFOFUNCTION, picture_fetch_on_progress) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_NOPROGRESS, 0L) == CURLE_OK;
    ok &= curl->easy_setopt(c, CURLOPT_USERAGENT, "weft/" WEFT_VERSION) == CURLE_OK;
    return ok && (!trusted || curl->easy_setopt(c, CURLOPT_CAINFO, trusted) == CURLE_OK);
}

/* Returns 0 for a whole answer with status 200, else an error that tells the client nothing of the
 * host's answer. */
static int picture_fetch_judge(const struct transfer *t, CURLcode r, long status, const char *place,
                               struct err *err) {
    if (t->no_memory || r == CURLE_OUT_OF_MEMORY)
        return -ENOMEM;
    if (r == CURLE_ABORTED_BY_CALLBACK)
        return -ECANCELED;
    if (t->refused)
        return picture_fetch_refuse(err, place, "its host has an address that is not public");
    if (t->too_large || r == CURLE_FILESIZE_EXCEEDED)
        return err_set_code(err, 413, "image_too_large", place, "%s: it has more than %u MiB.",
                            place, PICTURE_FILE_MAX >> 20);
    if (r == CURLE_OPERATION_TIMEDOUT)
        return picture_fetch_refuse(err, place, "its host took longer than 10 s");
    if (r == CURLE_PEER_FAILED_VERIFICATION)
        return picture_fetch_refuse(err, place, "its host's certificate is not valid");
    if (r != CURLE_OK)
        return picture_fetch_refuse(err, place,
                                    "its host cannot be reached, or ended the connection");
    if (status >= 300 && status < 400)
        return picture_fetch_refuse(err, place,
                                    "its host answers with another address, and none is followed");
    if (status != 200)
        return picture_fetch_refuse(err, place, "its host has no picture there");
    return 0;
}

static int get_body(struct transfer *t, const struct curl_calls *curl, CURL *c, CURLU *u,
                    const char *place, struct err *err) {
    long status = 0;

    if (!c || !set_options(curl, c, u, t))
        return -ENOMEM;
    CURLcode answer = curl->easy_perform(c);
    curl->easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    TRY(picture_fetch_judge(t, answer, status, place, err));
    if (t->body.len == 0)
        return picture_fetch_refuse(err, place, "its host has no picture there");
    return 0;
}

int picture_fetch(const struct picture_fetch_opts *o, const char *url, const char *place,
                  uint8_t **out, size_t *n, struct err *err) {
    struct transfer t = {.opts = o, .body.max = PICTURE_FILE_MAX + 1};
    const struct curl_calls *curl = curl_calls("picture-hosts", NULL);
    CURLU *u = NULL;

    TRY(picture_fetch_parse(curl, o, url, place, &u, err));
    CURL *c = curl->easy_init();
    int r = get_body(&t, curl, c, u, place, err);
    curl->easy_cleanup(c);
    curl->url_cleanup(u);
    if (r < 0) {
        buf_deinit(&t.body);
        return r;
    }
    *n = t.body.len;
    *out = (uint8_t *)t.body.data;
    return 0;
}

int picture_fetch_check_hosts(const char *const *hosts, struct err *err) {
    if (hosts && *hosts && !curl_calls("picture-hosts", err))
        return -EINVAL;
    return 0;
}

#else

int picture_fetch_check(const struct picture_fetch_opts *o, const char *url, const char *place,
                        struct err *err) {
    return picture_fetch_refuse(err, place,
                                "this service is built without libcurl and fetches nothing");
}

int picture_fetch(const struct picture_fetch_opts *o, const char *url, const char *place,
                  uint8_t **out, size_t *n, struct err *err) {
    return picture_fetch_check(o, url, place, err);
}

int picture_fetch_check_hosts(const char *const *hosts, struct err *err) {
    if (hosts && *hosts)
        return err_set(err, 0, "picture-hosts",
                       "picture-hosts: this weftd is built without libcurl.");
    return 0;
}

#endif
