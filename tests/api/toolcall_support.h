#pragma once

/*
 * toolcall_support - runs parsers in tests and writes down what they told, on one line:
 *      C<content> R<reasoning> name{arguments}; and
 *      "name{argumen!" for a call that was not completed.
 */

#include "api/toolcall/toolcall.h"

/* The two tools of the conversations in the data set, and some more. */
yyjson_val *toolcall_tools(void);

struct toolcall_case {
    const char *format, *reasoning; /* names; NULL: none */
    const char *in, *want;          /* want: with the usual options */
    const char *whole;              /* with whole_calls, when that differs */
    bool in_reasoning;
};

extern const struct toolcall_case toolcall_cases[];
extern const size_t n_toolcall_cases;

struct toolcall_run {
    const struct toolcall_format *format;
    const struct toolcall_reasoning *reasoning;
    struct toolcall_opts opts; /* the two above and the tools are filled in */
    const size_t *cuts;        /* ascending; the text is fed in these pieces */
    size_t n_cuts;
    size_t max_held;  /* out: the most that was in memory */
    size_t n_line;    /* out: bytes of what is returned; there may be NULs in it */
    uint32_t n_calls; /* out */
    bool ids;         /* write "name#id" */
};

/* Malloc'd. Also checks what holds of any run: events in order, arguments of complete calls are
 * JSON. */
char *toolcall_tell(struct toolcall_run *r, const char *in, size_t len);
struct toolcall_run toolcall_run_of(const struct toolcall_case *c);
