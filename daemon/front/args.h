#pragma once

/*
 * args - the command line: weftd's own options and those of llama-server and vLLM. An option of
 * theirs is translated, ignored because it always applies, or refused with advice; all refusals are
 * reported together. The command line is above the configuration file, and that above variables of
 * the environment (environment.h).
 */

#include "daemon/config/config.h"

/* A command line translated to weftd's own options. */
struct args {
    /* v[0] is the program; owned, ends with NULL */
    char **v;
    int n;
    /* list of options that are ignored because they always apply: "-fa, --jinja" */
    struct buf here;
    /* a line for each option that is accepted and has no effect of its own */
    struct buf noted;
    /* a line for each option that cannot be used */
    struct buf refused;
    uint32_t n_refused;
};

/* Options that depend on each other: --host and --port, -c and -np. Zeroed before the first
 * command line; a second one completes or replaces them. */
struct args_pairs {
    /* NULL: not given */
    const char *host;
    uint64_t port, context, parallel;
    bool has_port, has_context, unified, tls;
    /* one of a pair is on this command line */
    bool names_address, names_context;
};

/* Translates @argv. Returns 0 or -ENOMEM; args_deinit() must follow in either case. */
int args_translate(struct args *a, struct args_pairs *pairs, int argc, char **argv);
void args_deinit(struct args *a);

/* Reads the options into @c and replaces names of models, as weftctl models lists them, by their
 * files. Writes a line for refused and ignored options to @notes, which may be NULL. Returns 0, or
 * -errno with @err. */
int args_read(struct config *c, int argc, char **argv, FILE *notes, struct err *err);
