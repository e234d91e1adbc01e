/*
 * Under systemd (JOURNAL_STREAM names stderr) events go to the journal's socket in its native
 * protocol: lines of KEY=value in one datagram. Each pair of the event becomes a field WEFT_KEY. A
 * log that cannot be written is dropped: serving never waits for it. stderr may be a pipe without a
 * reader or a terminal that was stopped, and whether writes to it wait is a flag that all processes
 * with this open file share: therefore stderr is opened once more, for this process alone.
 */

#include "base/log.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/printable.h"

/* environment variable for processes that this one starts */
#define FORMAT_VARIABLE "WEFT_LOG_FORMAT"
#define LEVEL_VARIABLE "WEFT_LOG_LEVEL"

static atomic_int max_level = WLOG_INFO; /* enum log_level; atomic, because any thread logs */
static enum log_format format = LOG_TEXT;
static const char *process_name = "weft";
static int journal_fd = -1;
static int out_fd = -1; /* descriptor of stderr opened again; -1: not used */
static _Atomic uint64_t n_dropped;

/* Returns true if JOURNAL_STREAM names the file that stderr is now. The comparison is needed
 * because a terminal that a service has started inherits the variable. */
static bool stderr_is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

/* Returns a socket to the journal; -1: stderr is not the journal, or it cannot be reached. */
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

/* Opens stderr once more, in non-blocking mode. Returns -1 if it is a file or a socket, or cannot
 * be opened. */
static int open_again(void) {
    struct stat st;

    if (fstat(STDERR_FILENO, &st) < 0 || !(S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)))
        return -1;
    return open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void log_init(enum log_level max, const char *process) {
    assert(*process);
    max_level = max;
    process_name = process;
    if (out_fd < 0)
        out_fd = open_again();
    if (journal_fd < 0)
        journal_fd = open_journal();
    const char *name = getenv(FORMAT_VARIABLE);
    format = name && strcmp(name, "json") == 0 ? LOG_JSON : LOG_TEXT;
}

void log_set_format(enum log_format f) {
    format = f;
    setenv(FORMAT_VARIABLE, f == LOG_JSON ? "json" : "text", 1);
}

void log_set_level(enum log_level max) {
    max_level = max;
}

char *log_level_variable(void) {
    static char text[] = LEVEL_VARIABLE "=6";

    text[sizeof(text) - 2] = (char)('0' + max_level);
    return text;
}

enum log_level log_requested_level(void) {
    const char *text = getenv(LEVEL_VARIABLE);

    if (!text || *text < '0' + WLOG_ERROR || *text > '0' + WLOG_DEBUG)
        return WLOG_INFO;
    return (enum log_level)(*text - '0');
}

bool log_enabled(enum log_level level) {
    return (int)level <= max_level || level == WLOG_NOTICE;
}

/* Appends the pairs of @pairs as fields WEFT_KEY=value, one per line. */
static size_t add_fields(char *out, size_t size, const char *pairs) {
    size_t n = 0;

    while (*pairs) {
        const char *eq = strchr(pairs, '=');

        if (!eq)
            break;
        const char *end = log_value_end(eq + 1);
        if (n + (size_t)(end - pairs) + 8 > size)
            break;
        n += (size_t)sprintf(out + n, "WEFT_");
        for (const char *p = pairs; p < eq; p++)
            out[n++] = isalnum((unsigned char)*p) ? (char)toupper((unsigned char)*p) : '_';
        int quoted = eq[1] == '"' && end > eq + 2;
        n += (size_t)sprintf(out + n, "=%.*s\n", (int)(end - eq) - 1 - 2 * quoted, eq + 1 + quoted);
        assert(n < size);
        pairs = end + strspn(end, " ");
    }
    return n;
}

/* Sends one datagram in the journal's native protocol. */
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

/* Writes the line and returns true if all of it was taken. A stderr that could not be opened again
 * in non-blocking mode is polled first; another process that writes to it can still make the write
 * block. */
static bool put_now(const char *line, size_t len) {
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    if (out_fd >= 0)
        return write(out_fd, line, len) == (ssize_t)len;
    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
        return false;
    ssize_t n = send(STDERR_FILENO, line, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == ENOTSOCK)
        n = write(STDERR_FILENO, line, len);
    return n == (ssize_t)len;
}

/* Renders an event as log_render() does, with the present time. */
static size_t log_render_now(char *out, size_t size, const char *level, const char *event,
                             const char *pairs) {
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    const struct log_entry e = {.unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000,
                                .level = level,
                                .process = process_name,
                                .event = event,
                                .pairs = pairs};
    return log_render(out, size, format, &e);
}

void log_line(const char *line) {
    uint64_t n_lost = n_dropped ? atomic_exchange(&n_dropped, 0) : 0;

    if (n_lost) {
        char pairs[40], text[300];

        snprintf(pairs, sizeof(pairs), "lines=%llu", (unsigned long long)n_lost);
        size_t n = log_render_now(text, sizeof(text), "warn", "log_dropped", pairs);
        if (put_now(text, n))
            n_lost = 0;
    }
    n_lost += n_lost || !put_now(line, strlen(line));
    if (n_lost)
        atomic_fetch_add(&n_dropped, n_lost);
}

void log_event(enum log_level level, const char *event, const char *fmt, ...) {
    static const char *const names[] = {[WLOG_ERROR] = "error",
                                        [WLOG_WARN] = "warn",
                                        [WLOG_NOTICE] = "notice",
                                        [WLOG_INFO] = "info",
                                        [WLOG_DEBUG] = "debug"};
    char raw[1600], pairs[2000], line[4500];
    va_list ap;

    assert((size_t)level < ARRAY_SIZE(names) && names[level]);
    if (!log_enabled(level))
        return;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof(raw), fmt, ap);
    va_end(ap);
    printable_copy(pairs, sizeof(pairs), raw, strlen(raw), false);
    if (journal_fd >= 0) {
        send_journal(level, event, pairs);
        return;
    }
    log_render_now(line, sizeof(line), names[level], event, pairs);
    log_line(line);
}
