#pragma once

/*
 * toolcall_support - runs parsers in tests and writes their events on one line: C<content>
 * R<reasoning> name{arguments}; and "name{argumen!" for a call that was not completed.
 */

#include "api/toolcall/toolcall.h"

/* Returns the two tools of the conversations in the data set, and some more. */
yyjson_val *toolcall_tools(void);

struct toolcall_case {
    /* names of format and reasoning; NULL: none */
    const char *format, *reasoning;
    /* want: result with the default options */
    const char *in, *want;
    /* result with whole_calls, if it differs */
    const char *whole;
    bool in_reasoning;
    /* by the model; else the text was cut off */
    bool ended;
};

extern const struct toolcall_case toolcall_cases[];
extern const size_t n_toolcall_cases;

struct toolcall_run {
    const struct toolcall_format *format;
    const struct toolcall_reasoning *reasoning;
    /* `format` and `reasoning` above and the tools are filled in */
    struct toolcall_opts opts;
    /* ascending offsets; the text is fed in these pieces */
    const size_t *cuts;
    size_t n_cuts;
    /* those cuts behind which a special token begins */
    const size_t *special;
    size_t n_special;
    /* out: most bytes that were held in memory */
    size_t max_held;
    /* out: length of the result, which may contain NUL */
    size_t n_line;
    /* out: number of calls */
    uint32_t n_calls;
    /* by the model; else the text was cut off */
    bool ended;
    /* write "name#id" */
    bool ids;
};

/* Runs the parser. Returns its line, malloc'd. Also checks every run: events are in order, and
 * arguments of complete calls are JSON. */
char *toolcall_tell(struct toolcall_run *r, const char *in, size_t len);
struct toolcall_run toolcall_run_of(const struct toolcall_case *c);
