/* Transfers from the hub. */

#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/result.h"
#include "base/try.h"
#include "cmd/cli.h"
#include "cmd/ctl_hub.h"
#include "cmd/curl_again.h"

#define HUB "https://huggingface.co"
#define CONNECT_MS 15000
#define REDIRECTS_MAX 10
#define WAIT_MAX_MS 60000 /* longest wait between two attempts */
#define REFUSAL_MAX 4096  /* most bytes that are read of an error */

/* A client of the hub, for one transfer at a time. `endpoint` has no slash at its end; a token is
 * set only if it may be sent there (is_private()). */
struct hub {
    CURL *curl;
    /* the Authorization header; NULL: no token */
    struct curl_slist *token;
    char *endpoint;
    struct hub_options options;
    char why[CURL_ERROR_SIZE];
};

/* ---- address and token ---- */

static bool starts(const char *s, const char *with) {
    return strncasecmp(s, with, strlen(with)) == 0;
}

/* Returns whether a token may be sent to @endpoint: it must not cross a network unencrypted. */
static bool is_private(const char *endpoint) {
    return starts(endpoint, "https://") || cli_is_loopback(endpoint);
}

static int set_endpoint(struct hub *h, const char *endpoint, struct err *err) {
    const char *env = getenv("HF_ENDPOINT");

    if (!endpoint)
        endpoint = env && *env ? env : HUB;
    if (!starts(endpoint, "https://") && !starts(endpoint, "http://"))
        return err_set(err, 0, NULL, "HF_ENDPOINT is not an http address: %.100s", endpoint);
    h->endpoint = strdup(endpoint);
    if (!h->endpoint)
        return -ENOMEM;
    for (size_t n = strlen(h->endpoint); n > 0 && h->endpoint[n - 1] == '/'; n--)
        h->endpoint[n - 1] = 0;
    return 0;
}

/* Reads the token of the file that the environment names first. The caller frees *out; NULL: there
 * is none. */
static int token_of_file(char **out) {
    static const struct {
        const char *var, *below;
    } places[] = {{"HF_TOKEN_PATH", ""},
                  {"HF_HOME", "/token"},
                  {"XDG_CACHE_HOME", "/huggingface/token"},
                  {"HOME", "/.cache/huggingface/token"}};

    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        const char *value = getenv(places[i].var);
        char path[1024];
        size_t len;

        if (!value || !*value)
            continue;
        int n = snprintf(path, sizeof(path), "%s%s", value, places[i].below);
        if (n < 0 || (size_t)n >= sizeof(path))
            return 0;
        int r = cli_read_file(path, 4096, out, &len);
        if (r == -ENOMEM)
            return r;
        return 0;
    }
    return 0;
}

static int set_token(struct hub *h, struct err *err) {
    CLEANUP(freep) char *token = NULL;
    CLEANUP(freep) char *header = NULL;
    const char *env = getenv("HF_TOKEN");
    int r = 0;

    if (env && *env)
        r = (token = strdup(env)) ? 0 : -ENOMEM;
    else
        r = token_of_file(&token);
    if (r < 0 || !token)
        return r;
    token[strcspn(token, " \r\n\t")] = 0;
    if (!*token)
        return 0;
    if (!is_private(h->endpoint))
        return err_set(err, 0, NULL, "the token is not sent to %.100s, because it is not https",
                       h->endpoint);
    if (asprintf(&header, "Authorization: Bearer %s", token) < 0) {
        header = NULL;
        return -ENOMEM;
    }
    h->token = curl_slist_append(NULL, header);
    return enomem_unless(h->token);
}

/* Sets the options of every transfer. libcurl sends the Authorization header only to the host, port
 * and protocol of the first address, not to the targets of redirects. */
static void set_always(struct hub *h) {
    const char *protocols = starts(h->endpoint, "https://") ? "https" : "http,https";
    const char *ca = getenv("CURL_CA_BUNDLE");

    curl_easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h->curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(h->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(h->curl, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(h->curl, CURLOPT_LOW_SPEED_TIME, (long)h->options.stall_s);
    curl_easy_setopt(h->curl, CURLOPT_USERAGENT, "weftctl");
    curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, h->why);
    curl_easy_setopt(h->curl, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, h->token);
    if (ca && *ca)
        curl_easy_setopt(h->curl, CURLOPT_CAINFO, ca);
}

int hub_new(struct hub **out, const struct hub_options *o, struct err *err) {
    CLEANUP(hub_freep) struct hub *h = calloc(1, sizeof(*h));

    assert(o->stop);
    if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return -ENOMEM;
    h->options = *o;
    TRY(set_endpoint(h, o->endpoint, err));
    TRY(set_token(h, err));
    *out = STEAL(h);
    return 0;
}

struct hub *hub_free(struct hub *h) {
    if (!h)
        return NULL;
    curl_easy_cleanup(h->curl);
    curl_slist_free_all(h->token);
    free(h->endpoint);
    free(h);
    return NULL;
}

/* ---- one transfer ---- */

struct transfer {
    struct hub *hub;
    const struct hub_sink *sink;
    struct hub_reply *reply;
    /* header X-Error-Message, or "" */
    char message[200];
    uint64_t got;
    /* answers of the sink */
    bool begun, refused;
};

/* Reads the head of the final answer, after redirects, into the reply. */
static void read_head(struct transfer *t) {
    struct hub_reply *r = t->reply;
    CURL *curl = t->hub->curl;
    long long from = 0, to, total;
    struct curl_header *h;
    curl_off_t v = -1;

    *r = (struct hub_reply){.total = -1, .retry_after_s = -1};
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &r->status);
    if (curl_easy_header(curl, "Retry-After", 0, CURLH_HEADER, -1, &h) == CURLHE_OK &&
        curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &v) == CURLE_OK)
        r->retry_after_s = v;
    if (curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &v) == CURLE_OK)
        r->total = v;
    if (curl_easy_header(curl, "Content-Range", 0, CURLH_HEADER, -1, &h) == CURLHE_OK) {
        int n = sscanf(h->value, "bytes %lld-%lld/%lld", &from, &to, &total);

        if (n >= 2 && from >= 0) /* the total is "*" if the server does not know it */
            r->from = from, r->total = n == 3 ? total : -1;
        else if (sscanf(h->value, "bytes */%lld", &total) == 1 && total >= 0)
            r->total = total;
    }
    if (curl_easy_header(curl, "X-Error-Message", 0, CURLH_HEADER, -1, &h) == CURLHE_OK)
        snprintf(t->message, sizeof(t->message), "%.190s", h->value);
}

static size_t hub_on_data(char *data, size_t size, size_t n, void *ctx) {
    struct transfer *t = ctx;
    long status = 0;

    assert(!t->refused);
    curl_easy_getinfo(t->hub->curl, CURLINFO_RESPONSE_CODE, &status);
    t->got += size * n;
    if (status != 200 && status != 206) {
        if (t->got > REFUSAL_MAX)
            return 0;
        return size * n;
    }
    if (!t->begun) {
        read_head(t);
        t->refused = !t->sink->begin(t->sink->ctx, t->reply);
    }
    t->begun = true;
    if (!t->refused)
        t->refused = !t->sink->data(t->sink->ctx, data, size * n);
    if (t->refused)
        return 0;
    return size * n;
}

static int hub_on_tick(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    struct transfer *t = ctx;

    if (t->sink->tick)
        t->sink->tick(t->sink->ctx);
    return *t->hub->options.stop != 0;
}

/* Explains a refusal of the hub in @err, with the hub's own message. */
static int refusal(const struct transfer *t, struct err *err) {
    bool has_token = t->hub->token != NULL;
    long status = t->reply->status;
    bool again = status == 408 || status == 429 || status >= 500;
    const char *why = "the hub refuses it";

    if (again)
        why = "the hub is busy or broken";
    else if (status == 401)
        why = has_token ? "the token is not valid, or there is no such repository"
                        : "there is no such repository, or it is private (set HF_TOKEN)";
    else if (status == 403)
        why = has_token ? "the token has no access: ask for it on the repository's page"
                        : "the repository is gated: ask for access on its page and set HF_TOKEN";
    else if (status == 404)
        why = "there is no such repository, revision or file";
    err_set(err, (int)status, NULL, "%s (%ld%s%s)", why, status, *t->message ? ": " : "",
            t->message);
    if (again)
        return HUB_AGAIN;
    return HUB_REFUSED;
}

static int hub_broken(const struct hub *h, CURLcode code, struct err *err) {
    const char *why = h->why[0] ? h->why : curl_easy_strerror(code);

    err_set(err, 503, NULL, "%.300s%s", why,
            code == CURLE_COULDNT_RESOLVE_HOST ? " (is there a network?)" : "");
    switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return HUB_REFUSED;
    case CURLE_OUT_OF_MEMORY:
        return HUB_LOCAL;
    default:
        return HUB_AGAIN;
    }
}

int hub_get(struct hub *h, const char *path, uint64_t from, const struct hub_sink *sink,
            struct hub_reply *reply, struct err *err) {
    struct transfer t = {.hub = h, .sink = sink, .reply = reply};
    CLEANUP(freep) char *url = NULL;
    char range[32];

    assert(path[0] == '/' && sink->begin && sink->data);
    *reply = (struct hub_reply){.total = -1, .retry_after_s = -1};
    if (asprintf(&url, "%s%s", h->endpoint, path) < 0)
        url = NULL;
    h->curl = curl_again(h->curl);
    if (!url || !h->curl) {
        err_set(err, 0, NULL, "out of memory");
        return HUB_LOCAL;
    }
    set_always(h);
    snprintf(range, sizeof(range), "%llu-", (unsigned long long)from);
    curl_easy_setopt(h->curl, CURLOPT_URL, url);
    curl_easy_setopt(h->curl, CURLOPT_RANGE, from ? range : NULL);
    curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, hub_on_data);
    curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(h->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h->curl, CURLOPT_XFERINFOFUNCTION, hub_on_tick);
    curl_easy_setopt(h->curl, CURLOPT_XFERINFODATA, &t);
    h->why[0] = 0;
    CURLcode code = curl_easy_perform(h->curl);
    read_head(&t);
    if (*h->options.stop)
        return HUB_STOPPED;
    if (t.refused)
        return HUB_LOCAL;
    bool is_error = reply->status >= 300;
    if (is_error && (code == CURLE_OK || code == CURLE_WRITE_ERROR))
        return refusal(&t, err);
    if (code != CURLE_OK)
        return hub_broken(h, code, err);
    if (!t.begun && !sink->begin(sink->ctx, reply))
        return HUB_LOCAL;
    return HUB_OK;
}

int64_t hub_wait_ms(const struct hub_reply *reply, uint32_t n) {
    assert(n > 0);
    int64_t ms = 500ll << MIN(n - 1, 7u);

    if (reply->retry_after_s > WAIT_MAX_MS / 1000)
        return -1;
    return MIN(MAX(ms, reply->retry_after_s * 1000), (int64_t)WAIT_MAX_MS);
}

/* ---- paths ---- */

/* Appends @text with all characters except unreserved ones and "/" escaped. Returns false if there
 * is no room. */
static bool hub_add_escaped(char *out, size_t size, size_t *len, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = strchr("-._~/", c) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                     (c >= 'A' && c <= 'Z');

        if (*len + 4 > size)
            return false;
        *len += (size_t)sprintf(out + *len, plain ? "%c" : "%%%02X", c);
    }
    return true;
}

/* Appends a revision. The name of a branch may contain a slash, which is escaped because the
 * revision is one part of the path. */
static bool add_revision(char *out, size_t size, size_t *len, const char *revision) {
    size_t from = *len;
    char *slash;

    if (!hub_add_escaped(out, size, len, revision))
        return false;
    while ((slash = strchr(out + from, '/'))) {
        if (*len + 3 > size)
            return false;
        memmove(slash + 3, slash + 1, strlen(slash));
        memcpy(slash, "%2F", 3);
        *len += 2;
    }
    return true;
}

bool hub_listing_path(const struct hub_spec *spec, char *out, size_t size) {
    size_t len = (size_t)snprintf(out, size, "/api/models/%s/revision/", spec->repo);

    if (len >= size || !add_revision(out, size, &len, spec->revision) || len + 12 > size)
        return false;
    strcpy(out + len, "?blobs=true");
    return true;
}

bool hub_file_path(const struct hub_spec *spec, const char *commit, const char *file, char *out,
                   size_t size) {
    size_t len = (size_t)snprintf(out, size, "/%s/resolve/%s/", spec->repo, commit);

    return len < size && hub_add_escaped(out, size, &len, file);
}
