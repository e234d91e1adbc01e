#include "cmd/cli.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/meant.h"
#include "base/printable.h"
#include "base/try.h"
#include "base/version.h"

static void (*cli_reporter)(int code, const char *message);

void cli_report_to(void (*report)(int code, const char *message)) {
    cli_reporter = report;
}

static void cli_print(int code, const char *fmt, va_list ap, const char *hint) {
    char text[1024], shown[1400];

    vsnprintf(text, sizeof(text), fmt, ap);
    if (cli_reporter) {
        cli_reporter(code, text);
        return;
    }
    printable_copy(shown, sizeof(shown), text, strlen(text), false);
    fflush(stdout);
    fprintf(stderr, "%s: %s%s\n", program_invocation_short_name, shown, hint);
}

int cli_fail(const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    cli_print(CLI_FAILED, fmt, ap, "");
    va_end(ap);
    return CLI_FAILED;
}

int cli_fail_as(int code, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    cli_print(code, fmt, ap, "");
    va_end(ap);
    return code;
}

int cli_usage(const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    cli_print(CLI_USAGE, fmt, ap, " (try --help)");
    va_end(ap);
    return CLI_USAGE;
}

int cli_fail_err(const char *what, const struct err *e, int r) {
    assert(r < 0);
    const char *why = e && e->message[0] ? e->message : strerror(-r);

    /* A reader that opens the file itself has put its name into the reason. */
    if (strncmp(why, what, strlen(what)) == 0)
        return cli_fail("%s", why);
    return cli_fail("%s: %s", what, why);
}

/* Returns the binary logarithm of the factor that letter @unit stands for; 0: it is no unit. */
static unsigned cli_unit_shift(char unit) {
    switch (unit) {
    case 'K':
        return 10;
    case 'M':
        return 20;
    case 'G':
        return 30;
    default:
        return 0;
    }
}

bool cli_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    char *end;

    assert(min <= max);
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno)
        return false;
    unsigned shift = cli_unit_shift(*end);
    if (shift)
        end++;
    if (*end || (v << shift) >> shift != v)
        return false;
    v <<= shift;
    if (v < min || v > max)
        return false;
    *out = v;
    return true;
}

bool cli_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out) {
    uint64_t v;

    if (!cli_u64(text, min, max, &v))
        return false;
    *out = (uint32_t)v;
    return true;
}

bool cli_double(const char *text, double min, double max, double *out) {
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !isfinite(v) || v < min || v > max)
        return false;
    *out = v;
    return true;
}

static int read_stream(FILE *f, struct buf *b) {
    char chunk[65536];
    size_t n;

    while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0)
        TRY(buf_add(b, chunk, n));
    if (ferror(f))
        return -errno;
    return 0;
}

int cli_read_file(const char *path, size_t max, char **out, size_t *len) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    CLEANUP(buf_deinit) struct buf b = {.max = max};

    if (!f)
        return -errno;
    int r = read_stream(f, &b);
    if (f != stdin)
        fclose(f);
    TRY(r);
    TRY(buf_reserve(&b, 0)); /* so that an empty file is a string too */
    *len = b.len;
    *out = STEAL(b.data);
    return 0;
}

/* Writes @data to @fd and closes it. Returns 0 or -errno. */
static int cli_write_and_close(int fd, const void *data, size_t len, bool sync) {
    int r = 0;

    for (size_t at = 0; at < len && r == 0;) {
        ssize_t n = write(fd, (const char *)data + at, len - at);

        r = n < 0 ? -errno : 0;
        at += n < 0 ? 0 : (size_t)n;
    }
    if (r == 0 && sync && fsync(fd) < 0)
        r = -errno;
    if (close(fd) < 0 && r == 0)
        r = -errno;
    return r;
}

/* Writes a file beside @path, which then takes its place. @old: what is there, or NULL. */
static int cli_replace_file(const char *path, const struct stat *old, mode_t mode, const void *data,
                            size_t len, bool sync) {
    char next[PATH_MAX];

    if ((size_t)snprintf(next, sizeof(next), "%s.new-weft", path) >= sizeof(next))
        return -ENAMETOOLONG;
    int fd = files_create(AT_FDCWD, next, mode);
    if (fd < 0)
        return fd;
    if (old)
        (void)!fchmod(fd, old->st_mode & 0777);
    int r = cli_write_and_close(fd, data, len, sync);
    if (r == 0 && rename(next, path) < 0)
        r = -errno;
    if (r < 0)
        unlink(next);
    return r;
}

int cli_write_file(const char *path, mode_t mode, const void *data, size_t len, bool sync) {
    CLEANUP(freep) char *target = NULL;
    struct stat st;

    if (stat(path, &st) < 0)
        return cli_replace_file(path, NULL, mode, data, len, sync);
    if (S_ISREG(st.st_mode))
        target = realpath(path, NULL); /* a link stays one */
    if (target)
        return cli_replace_file(target, &st, mode, data, len, sync);
    /* no file, or one without a name, as behind /dev/stdout: realpath() fails for pipes, too */
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return cli_write_and_close(fd, data, len, sync);
}

bool cli_is_loopback(const char *url) {
    const char *scheme = strstr(url, "://"), *at = scheme ? scheme + 3 : url;
    size_t n = strcspn(at, "/?#"), n_host = strcspn(at, ":/?#");
    struct in_addr address;
    char host[32];

    if (*at == '[')
        n_host = strcspn(at, "]") + 1;
    if (memchr(at, '@', n) || n_host >= sizeof(host)) /* refuses a host behind a user's name */
        return false;
    snprintf(host, sizeof(host), "%.*s", (int)n_host, at);
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

/* Stores @value in the variable of @o. Returns false if it has another type or is out of range. */
static bool set_option(const struct cli_option *o, const char *value) {
    switch (o->kind) {
    case CLI_TEXT:
        *(const char **)o->out = value;
        return true;
    case CLI_U32:
        return cli_u32(value, (uint32_t)o->min, (uint32_t)o->max, o->out);
    case CLI_U64:
        return cli_u64(value, (uint64_t)o->min, o->max >= 0x1p64 ? UINT64_MAX : (uint64_t)o->max,
                       o->out);
    case CLI_DOUBLE:
        return cli_double(value, o->min, o->max, o->out);
    case CLI_TRUE:
    case CLI_FALSE:
        *(bool *)o->out = o->kind == CLI_TRUE;
        return true;
    }
    return false;
}

/* Says which values @o takes instead of @value. Returns CLI_USAGE. */
static int cli_refuse_value(const struct cli_option *o, const char *value) {
    const char *dashes = o->name[1] ? "--" : "-";

    if (o->kind == CLI_U64 && o->max >= 0x1p63)
        return cli_usage("option %s%s: \"%s\" is not a whole number from %.0f on, such as 7 or 16G",
                         dashes, o->name, value, o->min);
    return cli_usage("option %s%s: \"%s\" is not a number from %.15g to %.15g", dashes, o->name,
                     value, o->min, o->max);
}

/* CLI_LONG and the place in the table are the code of an option with a long name. */
enum { CLI_LONG = 256, CLI_OPTIONS_MAX = 40 };

/* The table of a command as getopt_long() wants it. */
struct cli_getopt {
    struct option more[CLI_OPTIONS_MAX + 2];
    char letters[2 * CLI_OPTIONS_MAX + 4];
};

static void cli_getopt_fill(struct cli_getopt *g, const struct cli_option *options, size_t n) {
    struct option *more = g->more;
    /* '-': arguments are returned as options of code 1; ':': a value that is missing as ':' */
    char *letter = stpcpy(g->letters, "-:h");

    assert(n <= CLI_OPTIONS_MAX);
    for (size_t i = 0; i < n; i++) {
        const struct cli_option *o = &options[i];
        bool takes_value = o->kind != CLI_TRUE && o->kind != CLI_FALSE;

        if (o->name[1]) {
            *more++ = (struct option){o->name, takes_value, NULL, CLI_LONG + (int)i};
            continue;
        }
        *letter++ = o->name[0];
        if (takes_value)
            *letter++ = ':';
    }
    *more++ = (struct option){"help", no_argument, NULL, 'h'};
    *more = (struct option){0};
    *letter = 0;
}

static const struct cli_option *cli_option_of(const struct cli_option *options, size_t n,
                                              int code) {
    if (code >= CLI_LONG)
        return &options[code - CLI_LONG];
    for (size_t i = 0; i < n; i++)
        if (options[i].name[0] == code && !options[i].name[1])
            return &options[i];
    return NULL;
}

/* Says what is wrong with @arg, which getopt_long() refused with ':' or '?'. Returns CLI_USAGE. */
static int cli_refuse_option(const struct cli_option *options, size_t n, const char *arg,
                             int refusal) {
    char name[64];
    struct meant m;

    if (refusal == ':')
        return cli_usage("option %s needs a value", arg);
    if (optopt >= CLI_LONG || optopt == 'h')
        return cli_usage("option %s takes no value", arg);
    snprintf(name, sizeof(name), "%s", arg + strspn(arg, "-"));
    name[strcspn(name, "=")] = 0;
    meant_init(&m, name);
    for (size_t i = 0; i < n; i++)
        if (options[i].name[1])
            meant_try(&m, options[i].name);
    if (m.name)
        return cli_usage("unknown option %s; is --%s meant?", arg, m.name);
    return cli_usage("unknown option %s", arg);
}

int cli_parse(int argc, char **argv, const struct cli_option *options, size_t n, const char *usage,
              int *n_args) {
    struct cli_getopt g;

    cli_getopt_fill(&g, options, n);
    *n_args = 0;
    optind = 0; /* begins anew */
    for (;;) {
        int at = MAX(optind, 1);
        int code = getopt_long(argc, argv, g.letters, g.more, NULL);

        if (code < 0)
            break;
        if (code == 1) {
            argv[++*n_args] = optarg;
            continue;
        }
        if (code == 'h') {
            fputs(usage, stdout);
            return cli_flush(CLI_OK);
        }
        if (code == '?' || code == ':')
            return cli_refuse_option(options, n, argv[at], code);
        const struct cli_option *o = cli_option_of(options, n, code);
        if (code < CLI_LONG && optarg && optarg[0] == '=') /* -n=VALUE */
            optarg++;
        if (!set_option(o, optarg))
            return cli_refuse_value(o, optarg);
    }
    while (optind < argc)
        argv[++*n_args] = argv[optind++];
    return -1;
}

static void print_commands(FILE *f, const char *program, const struct cli_command *commands,
                           size_t n) {
    fprintf(f, "usage: %s COMMAND ... | --version   (%s COMMAND --help for its options)\n", program,
            program);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "  %-11s %s\n", commands[i].name, commands[i].help);
}

bool cli_asks_version(const char *arg) {
    return strcmp(arg, "--version") == 0 || strcmp(arg, "-V") == 0;
}

int cli_version(const char *program) {
    version_print(program, "");
    return cli_flush(CLI_OK);
}

int cli_run(const char *program, const struct cli_command *commands, size_t n, int argc,
            char **argv) {
    files_open_standard();
    if (argc < 2) {
        print_commands(stderr, program, commands, n);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_commands(stdout, program, commands, n);
        return cli_flush(CLI_OK);
    }
    if (cli_asks_version(argv[1]))
        return cli_version(program);
    files_find_certificates();
    for (size_t i = 0; i < n; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    struct meant m;
    meant_init(&m, argv[1]);
    for (size_t i = 0; i < n; i++)
        meant_try(&m, commands[i].name);
    if (m.name)
        return cli_usage("unknown command \"%s\"; is %s meant?", argv[1], m.name);
    return cli_usage("unknown command \"%s\"", argv[1]);
}
