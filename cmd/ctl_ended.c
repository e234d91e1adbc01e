/* ctl_ended - the options of `weftctl requests --ended`. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/ctl.h"

#define DAY_S 86400

/* Reads a time into the number of seconds before @now. Returns false for another text. */
static bool ended_time(const char *text, time_t now, uint64_t *ago_s) {
    struct tm tm;
    char *end;
    const char *rest;

    if (text[0] < '0' || text[0] > '9')
        return false;
    unsigned long v = strtoul(text, &end, 10);
    if (strcmp(end, "m") == 0 || strcmp(end, "h") == 0) {
        if (v > 100000)
            return false;
        *ago_s = v * (*end == 'm' ? 60 : 3600);
        return true;
    }
    localtime_r(&now, &tm);
    tm.tm_sec = 0;
    rest = strptime(text, "%H:%M", &tm);
    if (!rest || *rest)
        return false;
    tm.tm_isdst = -1;
    time_t at = mktime(&tm);
    *ago_s = (uint64_t)(at <= now ? now - at : now - at + DAY_S);
    return true;
}

static bool ended_is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("-_.", c);
}

/* Appends the parameter @name, percent-encoded. Returns false if it does not fit. */
static bool ended_add(char *out, size_t size, const char *name, const char *value) {
    size_t n = strlen(out);

    n += (size_t)snprintf(out + n, size - n, "%c%s=", strchr(out, '?') ? '&' : '?', name);
    for (; *value && n + 4 < size; value++)
        n += (size_t)snprintf(out + n, size - n, ended_is_plain(*value) ? "%c" : "%%%02X",
                              (unsigned char)*value);
    return !*value && n < size;
}

static bool ended_add_seconds(char *out, size_t size, const char *name, const char *text,
                              time_t now) {
    uint64_t ago_s;
    char number[24];

    if (!ended_time(text, now, &ago_s))
        return false;
    snprintf(number, sizeof(number), "%llu", (unsigned long long)ago_s);
    return ended_add(out, size, name, number);
}

int ctl_ended_path(int argc, char **argv, time_t now, const char *help, char *out, size_t size) {
    const char *tenant = NULL, *since = NULL, *until = NULL;
    bool ended = false, slowest = false;
    const struct cli_option options[] = {
        {"ended", CLI_TRUE, &ended, 0, 0},     {"tenant", CLI_TEXT, &tenant, 0, 0},
        {"since", CLI_TEXT, &since, 0, 0},     {"until", CLI_TEXT, &until, 0, 0},
        {"slowest", CLI_TRUE, &slowest, 0, 0},
    };
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), help, &n_args);

    if (code >= 0)
        return code;
    if (n_args > 0)
        return cli_usage("requests takes only --ended, --tenant NAME, --since TIME, --until TIME "
                         "and --slowest");
    if (!ended)
        return cli_usage("--tenant, --since, --until and --slowest need --ended");
    snprintf(out, size, "/requests/ended");
    bool ok = !tenant || (*tenant && ended_add(out, size, "tenant", tenant));
    ok = ok && (!since || ended_add_seconds(out, size, "oldest_s", since, now));
    ok = ok && (!until || ended_add_seconds(out, size, "newest_s", until, now));
    ok = ok && (!slowest || ended_add(out, size, "order", "slowest"));
    if (ok)
        return -1;
    return cli_usage("a TIME is 10:30, 15m or 2h, and a tenant's name is not empty");
}
