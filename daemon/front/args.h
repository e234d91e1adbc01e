#pragma once

/*
 * args - the command line: weftd's own options and those of llama-server. An option of llama-server
 * is translated, ignored because it always applies, or refused with advice; all refusals are
 * reported together.
 */

#include "daemon/config/config.h"

/* A command line translated to weftd's own options. */
struct args {
    char **v; /* v[0] is the program; owned, ends with NULL */
    int n;
    /* list of options that are ignored because they always apply: "-fa, --jinja" */
    struct buf here;
    struct buf refused; /* a line for each option that cannot be used */
    uint32_t n_refused;
};

/* Translates @argv. Returns 0 or -ENOMEM; args_deinit() must follow in either case. */
int args_translate(struct args *a, int argc, char **argv);
void args_deinit(struct args *a);

/* Reads the options into @c and replaces names of models, as weftctl models lists them, by their
 * files. Writes a line for refused and ignored options to @notes, which may be NULL. Returns 0, or
 * -errno with @err. */
int args_read(struct config *c, int argc, char **argv, FILE *notes, struct err *err);
