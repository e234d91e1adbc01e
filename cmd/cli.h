#pragma once

/*
 * cli - code shared by the command-line programs: exit codes, one-line errors, numbers. Errors go
 * to stderr as "PROGRAM: reason", with the reason always on one line.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/files.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 64 };

/* Print the error and return the exit code, so that `return cli_fail(...)` ends a command. */
int cli_fail(const char *fmt, ...) PRINTF(1, 2);
int cli_fail_as(int code, const char *fmt, ...) PRINTF(2, 3); /* with another exit code */
int cli_usage(const char *fmt, ...) PRINTF(1, 2); /* as cli_fail(), and adds "(try --help)" */

/* From now on @report gets the errors, with their exit codes, instead of stderr. NULL: stderr. */
void cli_report_to(void (*report)(int code, const char *message));

/* Prints "@what: @e's message", or the text of the errno @r if @e has none, and returns the exit
 * code. */
int cli_fail_err(const char *what, const struct err *e, int r);

/* Writes out what was printed to stdout. Returns @code, or CLI_FAILED if a part could not be
 * written: `return cli_flush(code)` ends a command that prints. */
static inline int cli_flush(int code) {
    if (files_flush())
        return code;
    return CLI_FAILED;
}

/* Parses the whole of @text as a number in [min, max]; else returns false and leaves *out
 * unwritten. For cli_u64() @text may end in K, M or G (powers of 1024). */
bool cli_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool cli_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out);
bool cli_double(const char *text, double min, double max, double *out);

/* Reads the whole of @path ("-": stdin), NUL-terminated, at most @max bytes. The caller owns
 * *out. */
int cli_read_file(const char *path, size_t max, char **out, size_t *len);

/* Writes @len bytes to @path; with @sync waits until they are on the disk. A file has either its
 * old or its new content, by renaming a new one, and keeps its mode; a device or pipe is written
 * to. Returns 0 or -errno. */
int cli_write_file(const char *path, mode_t mode, const void *data, size_t len, bool sync);

/* Returns whether the host of @url is this machine: localhost, [::1] or an address 127.x.x.x. */
bool cli_is_loopback(const char *url);

/* Type of an option's variable. */
enum cli_kind { CLI_TEXT, CLI_U32, CLI_U64, CLI_DOUBLE, CLI_TRUE, CLI_FALSE };

/* An option "--name VALUE" or "--name=VALUE"; a name of one letter is "-n VALUE". CLI_TRUE and
 * CLI_FALSE take no value. */
struct cli_option {
    const char *name;
    enum cli_kind kind;
    /* variable of type const char *, uint32_t, uint64_t, double or bool */
    void *out;
    double min, max;
};

/* Reads the options of @argv (argv[0]: the command) into their variables; other arguments are moved
 * to argv[1] to argv[*n_args]. Returns -1 to continue, or an exit code: after --help, which prints
 * @usage, or after a mistake. */
int cli_parse(int argc, char **argv, const struct cli_option *options, size_t n, const char *usage,
              int *n_args);

/* A command of a program with several commands; it gets the arguments from its own name on and
 * returns the exit code. */
struct cli_command {
    const char *name;
    int (*run)(int argc, char **argv);
    /* summary in a few words */
    const char *help;
};

/* Returns whether @arg is --version or -V. */
bool cli_asks_version(const char *arg);
/* Prints the name of @program and the version. Returns the exit code. */
int cli_version(const char *program);

/* Runs the command that argv[1] names, or prints the list of commands, or with --version the
 * version. Returns the exit code. */
int cli_run(const char *program, const struct cli_command *commands, size_t n, int argc,
            char **argv);
