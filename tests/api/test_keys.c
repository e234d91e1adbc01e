/* The file of API keys, the key of a request, and the host names that a server accepts. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/http/http.h"
#include "api/limits/auth.h"
#include "base/buf.h"
#include "base/loop_bytes.h"
#include "base/try.h"

static const struct http_limits limits = {.target = 100, .head = 4096, .n_headers = 9};
static const int64_t NOON = INT64_C(1835438400); /* 2028-02-29, 12:00 UTC */
static int64_t time_s;
static char path[64];
static struct auth a;
static struct err err;
static bool key_operates; /* the key of the last tenant_of() is an operator's */

static int64_t now(void) {
    return time_s;
}

static void write_file(const char *text) {
    FILE *f = fopen(path, "w");

    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    err = (struct err){0};
}

static void start(const char *text) {
    strcpy(path, "/tmp/weft-test-keys-XXXXXX");
    close(mkstemp(path));
    auth_init(&a, path);
    a.now_s = now;
    time_s = NOON;
    write_file(text);
    cr_assert_eq(auth_reload(&a, &err), 0, "%s", err.message);
}

static void stop(void) {
    auth_deinit(&a);
    unlink(path);
}

static void read_head(struct http *h, const char *lines) {
    char head[1500];
    size_t used;

    snprintf(head, sizeof(head), "GET / HTTP/1.1\r\n%s\r\n", lines);
    http_init(h, &limits);
    cr_assert_eq(http_feed(h, head, strlen(head), &used, &err), HTTP_HEAD_DONE);
}

/* Checks the key of a request with these header lines. */
static int check_lines(const char *lines, const struct auth_key **found) {
    char text[600];
    struct http h;

    err = (struct err){0};
    *found = NULL;
    snprintf(text, sizeof(text), "Host: a\r\n%s", lines);
    read_head(&h, text);
    int r = auth_check(&a, &h, found, &err);
    http_deinit(&h);
    return r;
}

/* Returns the name of the tenant with @key, or the error. */
static const char *tenant_of(const char *key) {
    const struct auth_key *found;
    char line[500];

    snprintf(line, sizeof(line), "X-Api-Key: %s\r\n", key);
    int r = check_lines(line, &found);
    key_operates = r == 0 && found->is_operator;
    return r == 0 ? a.names[found->tenant] : err.code;
}

#define SUM "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

Test(keys, have_names_that_stay_theirs) {
    start(" alice:ka \n\t# no key:here\nkb\r\nalice:kc\n:kd");
    cr_expect_eq(a.n_keys, 4);
    cr_expect_str_eq(tenant_of("ka"), "alice");
    cr_expect_str_eq(tenant_of("kb"), "key-2");
    cr_expect_str_eq(tenant_of("kc"), "alice");
    cr_expect_str_eq(tenant_of("kd"), "key-4");
    uint32_t n = a.n_tenants;

    write_file("carol:kb\nalice:kb2\n");
    cr_assert_eq(auth_reload(&a, &err), 0);
    cr_expect_str_eq(tenant_of("kb"), "carol");
    cr_expect_str_eq(tenant_of("kb2"), "alice");
    cr_expect_str_eq(tenant_of("ka"), "invalid_api_key");
    cr_expect_str_eq(a.names[0], "alice");
    cr_expect_eq(a.n_tenants, n + 1, "live requests carry the numbers of those that are gone");
    stop();
}

Test(keys, may_be_kept_as_checksums) {
    start("alice:sha256$" SUM "\n");
    cr_expect_str_eq(tenant_of("secret"), "alice");
    cr_expect_str_eq(tenant_of("sha256$" SUM), "invalid_api_key", "the file gives no access");
    cr_expect_str_eq(tenant_of(SUM), "invalid_api_key");
    stop();
}

Test(keys, hold_until_the_end_of_their_last_day) {
    start("alice:ka \t expires=2028-02-29\n");
    cr_expect_str_eq(tenant_of("ka"), "alice");
    time_s = NOON + 12 * 3600 - 1;
    cr_expect_str_eq(tenant_of("ka"), "alice");
    time_s++;
    cr_expect_str_eq(tenant_of("ka"), "expired_api_key");
    stop();
}

/* The right is that of one key, not of its name; it ends with the key and with its line. */
Test(keys, may_be_an_operators) {
    start("ada:ka operator\nada:kb\neve:kc\texpires=2028-02-29 \t operator\nkd operator\n");
    cr_expect_str_eq(tenant_of("ka"), "ada");
    cr_expect(key_operates);
    tenant_of("kb");
    cr_expect_not(key_operates);
    tenant_of("kc");
    cr_expect(key_operates);
    cr_expect_str_eq(tenant_of("kd"), "key-4");
    cr_expect(key_operates);
    time_s = NOON + 12 * 3600;
    cr_expect_str_eq(tenant_of("kc"), "expired_api_key");
    cr_expect_not(key_operates);
    write_file("ada:ka\n");
    cr_assert_eq(auth_reload(&a, &err), 0);
    cr_expect_str_eq(tenant_of("ka"), "ada");
    cr_expect_not(key_operates);
    stop();
}

Test(keys, have_limits) {
    static const struct {
        int name, key;
        const char *after;
        bool good;
    } lines[] = {
        {63, 256, "", true},
        {64, 8, "", false},
        {5, 257, "", false},
        {5, 0, "", false},
        {5, 9, " expires=2028-12-31", true},
        {5, 9, " expires=2027-02-29", false},
        {5, 9, " expires=2028-13-01", false},
        {5, 9, " expires=2028-00-01", false},
        {5, 9, " expires=2028-1-01", false},
        {5, 9, " expires=2028-01-01x", false},
        {5, 9, " expires=2028/01/01", false},
        {5, 9, " operator expires=2028-12-31", true},
        {5, 9, " operator operator", false},
        {5, 9, " expires=2028-12-31 expires=2028-12-31", false},
        {5, 9, " operators", false},
        {5, 9, " Operator", false},
        {5, 9, " operator=no", false},
        {0, 0, "sha256$" SUM "0", false},
        {0, 0, "sha256$0", false},
        {0, 0, "sha256$G" SUM, false},
    };
    char text[600];

    start("old:ko\n");
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        char name[100] = "", key[300] = "";

        memset(name, 'n', (size_t)lines[i].name);
        memset(key, 'k', (size_t)lines[i].key);
        snprintf(text, sizeof(text), "# two lines\n%s:%s%s\n", name, key, lines[i].after);
        write_file(text);
        int r = auth_reload(&a, &err);
        cr_expect_eq(r, lines[i].good ? 0 : -EINVAL, "%s", text);
        cr_expect(lines[i].good || strstr(err.message, ":2: must be"), "%s", err.message);
        if (lines[i].good)
            cr_expect_str_eq(tenant_of(key), name);
    }
    FILE *f = fopen(path, "w");
    for (int i = 0; i < AUTH_KEYS_MAX; i++)
        fprintf(f, "same:no-warning-for-such-a-long-key-%d\n", i);
    fclose(f);
    cr_expect_eq(auth_reload(&a, &err), 0, "%s", err.message);
    f = fopen(path, "a");
    fputs("same:more\n", f);
    fclose(f);
    cr_expect_eq(auth_reload(&a, &err), -EINVAL);
    cr_expect_str_eq(tenant_of("no-warning-for-such-a-long-key-4095"), "same", "the old keys stay");
    stop();
}

/* Reads the file again. The keys stay as they were if it is refused. */
static void refused(int want, const char *text) {
    cr_expect_eq(auth_reload(&a, &err), want);
    cr_expect(strstr(err.message, text), "%s has no %s", err.message, text);
    cr_expect_str_eq(tenant_of("ko"), "old");
}

Test(keys, of_a_file_that_is_refused_do_not_count) {
    static const char other[] = ":2: a line above has this key, with another name";
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 12};

    start("old:ko\n");
    write_file("# none\n\n");
    refused(-EINVAL, ": contains no key: weftctl key new");
    write_file("a:k expires=2028-12-31\na:k expires=2028-12-30\n");
    refused(-EINVAL, other);
    write_file("a:k expires=2028-12-31\na:k\n");
    refused(-EINVAL, other);
    for (int n = 1022; n <= 1023; n++) {
        buf_clear(&b);
        cr_assert_eq(buf_printf(&b, "#%0*d\nold:ko\n", n - 1, 0), 0);
        write_file(b.data);
        if (n == 1022)
            cr_expect_eq(auth_reload(&a, &err), 0, "%s", err.message);
        else
            refused(-EINVAL, ":1: is longer than 1022 bytes or contains a NUL");
    }
    write_file("old:ko expires=2028-12-31\nold:ko expires=2028-12-31\n");
    cr_expect_eq(auth_reload(&a, &err), 0, "twice the same: %s", err.message);
    unlink(path);
    err = (struct err){0};
    refused(-ENOENT, "No such file or directory");
    cr_assert_eq(mkdir(path, 0700), 0);
    err = (struct err){0};
    refused(-EISDIR, ": cannot be read: Is a directory");
    rmdir(path);
    stop();
}

/* Returns the name of the tenant with these header lines, or the error. */
static const char *told_of(const char *lines) {
    const struct auth_key *found;

    if (check_lines(lines, &found) == 0)
        return a.names[found->tenant];
    cr_expect(!found && err.status == 401, "%d", err.status);
    return err.message;
}

Test(keys, come_in_one_header) {
    static const char none[] = R"(No API key was given. Send "Authorization: Bearer KEY".)";
    static const char wrong[] = "Incorrect API key provided.";
    static const char many[] = "More than one API key was given.";
    static const char *const cases[][2] = {
        {"", none},
        {"Authorization: Basic ka\r\n", none},
        {"Authorization: ka\r\n", none},
        {"Authorization: Bearer ka\r\n", "alice"},
        {"AUTHORIZATION: bEARER   ka\r\n", "alice"},
        {"Authorization: Bearer \r\n", none},
        {"Authorization: Bearer kax\r\n", wrong},
        {"X-Api-Key: ka\r\n", "alice"},
        {"X-Api-Key:\r\n", wrong},
        {"Authorization: Bearer ka\r\nX-Api-Key: kb\r\n", "alice"},
        {"Authorization: Basic x\r\nX-Api-Key: kb\r\n", "bob"},
        {"Authorization: Bearer ka\r\nAuthorization: Bearer ka\r\n", many},
        {"Authorization: Bearer ka\r\nX-Api-Key: kb\r\nX-Api-Key: kb\r\n", many},
    };

    start("alice:ka\nbob:kb\n");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        cr_expect_str_eq(told_of(cases[i][0]), cases[i][1], "%s", cases[i][0]);
    stop();
}

/* Returns the status of a request with these header lines, 0 if it is accepted. */
static int status_of(const char *lines, bool local) {
    static const char *const hosts[] = {"weft.example", NULL};
    static const char *const origins[] = {"https://chat.example", NULL};
    struct http h;

    err = (struct err){0};
    read_head(&h, lines);
    int r = auth_check_host(hosts, origins, &h, local, &err);
    http_deinit(&h);
    return r == 0 ? 0 : err.status;
}

Test(keys, hosts_that_are_known) {
    static const struct {
        const char *host;
        int status;
    } cases[] = {
        {"localhost", 0},       {"LOCALHOST:80", 0},  {"localhost:", 0},
        {"a.localhost", 0},     {".localhost", 421},  {"xlocalhost", 421},
        {"10.1.2.3:8080", 0},   {"[::1]:8080", 0},    {"[2001:db8::1]", 0},
        {"[::1", 421},          {"[]", 421},          {"::1", 421},
        {"[10.1.2.3]", 421},    {"weft.example", 0},  {"Weft.Example:99", 0},
        {"weft.example.", 421}, {"weft.exampl", 421}, {"weft.example:8o", 421},
        {":80", 421},           {"1.2.3", 421},
    };
    char line[100];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        snprintf(line, sizeof(line), "Host: %s\r\n", cases[i].host);
        cr_expect_eq(status_of(line, false), cases[i].status, "%s", cases[i].host);
        cr_expect_eq(status_of(line, true), 0, "no browser reaches a UNIX socket");
    }
    cr_expect_eq(status_of("Host: localhost\r\nHost: localhost\r\n", true), 400);
    cr_expect_eq(status_of("X-Y: z\r\n", true), 400);
}

/* An origin is accepted if the page comes from this server; an address alone proves nothing. */
Test(keys, origins_that_are_known) {
    static const struct {
        const char *origin;
        int status;
    } cases[] = {
        {"http://127.0.0.2:3000", 0}, {"https://[::1]", 0},          {"https://[::2]", 403},
        {"http://10.1.2.3", 403},     {"http://localhost:5173", 0},  {"https://chat.example", 0},
        {"http://chat.example", 403}, {"http://weft.example", 0},    {"null", 403},
        {"http://10.1.2.4:8080", 0},  {"file://10.1.2.4:8080", 403},
    };
    char lines[200];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        snprintf(lines, sizeof(lines), "Host: 10.1.2.4:8080\r\nOrigin: %s\r\n", cases[i].origin);
        cr_expect_eq(status_of(lines, false), cases[i].status, "%s", cases[i].origin);
    }
    cr_expect_eq(status_of("Host: localhost\r\nOrigin: http://localhost\r\n"
                           "Origin: http://localhost\r\n",
                           false),
                 403);
}

/* One * of an entry stands for any characters, as in Ollama's list; a network for addresses. */
Test(keys, origins_with_a_star) {
    static const struct {
        const char *entry, *origin;
        bool known;
    } cases[] = {
        {"*", "null", true},
        {"app://*", "app://obsidian.md", true},
        {"app://*", "App://obsidian.md", true},
        {"app://*", "app://", true},
        {"app://*", "apps://x", false},
        {"chrome-extension://*", "chrome-extension://abc", true},
        {"*://chat.lan", "https://chat.lan", true},
        {"*://chat.lan", "https://chat.lan:8080", false},
        {"*://chat.lan", "https://chat.lan.example", false},
        {"https://*.chat.lan", "https://a.b.chat.lan", true},
        {"https://*.chat.lan", "https://chat.lan", false},
        {"https://chat.lan:*", "https://chat.lan:3000", true},
        {"https://aa*aa", "https://aaa", false},
        {"http://192.168.*", "http://192.168.1.7", true},
        {"http://192.168.*", "http://192.168.1.7:3000", true},
        {"http://192.168.*", "https://192.168.1.7", false},
        {"http://192.168.*", "http://192.168.evil.example", false},
        {"http://192.168.*", "http://192.168.1.7.evil.example", false},
        {"http://192.168.*:3000", "http://192.168.1.7:3000", true},
        {"http://192.168.*:3000", "http://192.168.1.7:3001", false},
        {"*://192.168.1.7", "http://192.168.1.7", true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *const entries[] = {cases[i].entry, NULL}, *const none[] = {NULL};

        cr_expect_eq(auth_knows_origin(none, entries, cases[i].origin), cases[i].known, "%s, %s",
                     cases[i].entry, cases[i].origin);
    }
}

static size_t n_items;

static void count_items(size_t bytes, size_t items) {
    n_items += items;
}

Test(keys, a_reload_visits_few_names_for_each_key) {
    CLEANUP(buf_deinit) struct buf text = {.max = 1 << 20};

    for (int i = 0; i < AUTH_KEYS_MAX; i++)
        cr_assert_eq(buf_printf(&text, "name-%d:sha256$%064x\n", i, i), 0);
    start(text.data);
    loop_watch = count_items;
    cr_expect_eq(auth_reload(&a, &err), 0, "%s", err.message);
    loop_watch = NULL;
    cr_expect_eq(a.n_tenants, AUTH_KEYS_MAX);
    cr_expect(n_items >= AUTH_KEYS_MAX && n_items < 3 * AUTH_KEYS_MAX, "%zu", n_items);
    stop();
}
