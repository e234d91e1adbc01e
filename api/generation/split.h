#pragma once

/*
 * split - the output of one generation taken apart: content, reasoning and tool calls as far as they
 * are known, each text in one piece, and the order in which they came as a list of runs. A stream
 * sends runs from where it is (struct split_at); a whole answer takes the texts.
 *
 * Everything here is a function of the output's bytes alone. Since a generation keeps its tokens and
 * text when the worker dies, nothing is parsed or told twice.
 */

#include "api/toolcall/toolcall.h"

enum split_kind { SPLIT_CONTENT, SPLIT_REASONING, SPLIT_CALL };
#define SPLIT_KINDS 3

struct split_call {
    char id[TOOLCALL_ID_MAX + 1], name[TOOLCALL_NAME_MAX + 1];
    size_t begin, end; /* arguments, in text[SPLIT_CALL] */
    bool complete;
};

struct split_run {
    enum split_kind kind;
    uint32_t call; /* SPLIT_CALL: which */
    size_t begin, end;
};

struct split {
    struct toolcall_opts opts;
    struct toolcall_parser *parser;
    struct buf text[SPLIT_KINDS];
    struct split_run *runs;
    struct split_call *calls;
    uint32_t n_runs, cap_runs, n_calls, cap_calls;
    uint32_t n_reasoning; /* tokens inside reasoning, without its markers */
    bool in_reasoning;    /* after the last whole token */
    bool finished;
};

struct split_at {
    uint32_t run;
    size_t sent; /* bytes of it */
    bool named;  /* SPLIT_CALL: id and name are sent */
};

/* One thing to send. */
struct split_piece {
    enum split_kind kind;
    uint32_t call;
    bool begins; /* SPLIT_CALL: id and name; no text */
    const char *text;
    size_t len;
};

int split_new(struct split **out, const struct toolcall_opts *opts, size_t max);
struct split *split_free(struct split *s);

/* The text of a control token is a part of some marker, and so has to be seen. */
bool split_wants(const struct split *s, const char *text, size_t len);
int split_feed(struct split *s, const char *data, size_t len);
/* A token of @token_len bytes has been fed to its end. */
void split_count(struct split *s, size_t token_len);
int split_finish(struct split *s);

/* Any call is complete. */
bool split_has_call(const struct split *s);
/* What comes next; false: nothing yet. */
bool split_next(const struct split *s, struct split_at *at, struct split_piece *out);
