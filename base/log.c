#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * Under systemd (JOURNAL_STREAM names stderr) events go to the journal's socket in its native
 * protocol: lines of KEY=value in one datagram. Each pair of the event becomes a field WEFT_KEY.
 * A log that cannot be written is dropped: serving never waits for it.
 */

static enum log_level max_level = WLOG_INFO;
static const char *process_name = "weft";
static int journal_fd = -1;

/* A terminal started by a service inherits the variable too: it must name what stderr is now. */
static bool stderr_is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

static int open_journal(void) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};

    if (!stderr_is_journal())
        return -1;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void log_init(enum log_level max, const char *process) {
    max_level = max;
    process_name = process;
    if (journal_fd < 0)
        journal_fd = open_journal();
}

void log_set_level(enum log_level max) {
    max_level = max;
}

/* Copies @in to @out with everything but printable ASCII and valid high bytes as \xNN. */
static void escape(char *out, size_t size, const char *in) {
    size_t n = 0;

    for (; *in && n + 5 < size; in++) {
        unsigned char c = (unsigned char)*in;

        if (c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(out + n, size - n, "\\x%02x", c);
        else
            out[n++] = (char)c;
    }
    out[n] = 0;
}

/* Appends the pairs of @pairs as fields WEFT_KEY=value, one per line. */
static size_t add_fields(char *out, size_t size, const char *pairs) {
    size_t n = 0;

    while (*pairs) {
        const char *eq = strchr(pairs, '=');

        if (!eq)
            break;
        const char *end = eq + 1;
        if (*end == '"')
            end = strchr(end + 1, '"') ? strchr(end + 1, '"') + 1 : end + strlen(end);
        else
            end += strcspn(end, " ");
        if (n + (size_t)(end - pairs) + 8 > size)
            break;
        n += (size_t)sprintf(out + n, "WEFT_");
        for (const char *p = pairs; p < eq; p++)
            out[n++] = isalnum((unsigned char)*p) ? (char)toupper((unsigned char)*p) : '_';
        int quoted = eq[1] == '"' && end > eq + 2;
        n += (size_t)sprintf(out + n, "=%.*s\n", (int)(end - eq) - 1 - 2 * quoted, eq + 1 + quoted);
        pairs = end + strspn(end, " ");
    }
    return n;
}

static void send_journal(enum log_level level, const char *event, const char *pairs) {
    char msg[4096];
    int n = snprintf(msg, sizeof(msg),
                     "MESSAGE=%s %s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=weftd\nWEFT_EVENT=%s\n"
                     "WEFT_PROCESS=%s\n",
                     event, pairs, (int)level, event, process_name);

    if (n < 0 || (size_t)n >= sizeof(msg))
        return;
    size_t len = (size_t)n + add_fields(msg + n, sizeof(msg) - (size_t)n, pairs);
    (void)!send(journal_fd, msg, len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void log_event(enum log_level level, const char *event, const char *fmt, ...) {
    static const char *const names[] = {
        [WLOG_ERROR] = "error", [WLOG_WARN] = "warn", [WLOG_INFO] = "info", [WLOG_DEBUG] = "debug"};
    char raw[1600], pairs[2000], line[2200];
    va_list ap;

    if (level > max_level)
        return;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof(raw), fmt, ap);
    va_end(ap);
    escape(pairs, sizeof(pairs), raw);
    if (journal_fd >= 0) {
        send_journal(level, event, pairs);
        return;
    }
    int n = snprintf(line, sizeof(line), "%s %s %s %s\n", names[level], process_name, event, pairs);
    if (n > 0)
        (void)!write(STDERR_FILENO, line, MIN((size_t)n, sizeof(line) - 1));
}
