#pragma once

/*
 * toolcall_support - runs parsers in tests and writes their events on one line: C<content>
 * R<reasoning> name{arguments}; and "name{argumen!" for a call that was not completed.
 */

#include "api/toolcall/toolcall.h"

/* Returns the two tools of the conversations in the data set, and some more. */
yyjson_val *toolcall_tools(void);

struct toolcall_case {
    const char *format, *reasoning; /* names of format and reasoning; NULL: none */
    const char *in, *want;          /* want: result with the default options */
    const char *whole;              /* result with whole_calls, if it differs */
    bool in_reasoning;
    bool ended; /* by the model; else the text was cut off */
};

extern const struct toolcall_case toolcall_cases[];
extern const size_t n_toolcall_cases;

struct toolcall_run {
    const struct toolcall_format *format;
    const struct toolcall_reasoning *reasoning;
    struct toolcall_opts opts; /* `format` and `reasoning` above and the tools are filled in */
    const size_t *cuts;        /* ascending offsets; the text is fed in these pieces */
    size_t n_cuts;
    const size_t *special; /* those cuts behind which a special token begins */
    size_t n_special;
    size_t max_held;  /* out: most bytes that were held in memory */
    size_t n_line;    /* out: length of the result, which may contain NUL */
    uint32_t n_calls; /* out: number of calls */
    bool ended;       /* by the model; else the text was cut off */
    bool ids;         /* write "name#id" */
};

/* Runs the parser. Returns its line, malloc'd. Also checks every run: events are in order, and
 * arguments of complete calls are JSON. */
char *toolcall_tell(struct toolcall_run *r, const char *in, size_t len);
struct toolcall_run toolcall_run_of(const struct toolcall_case *c);
