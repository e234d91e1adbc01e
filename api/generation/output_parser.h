#pragma once

/*
 * output_parser - splits the output of one generation into content, reasoning and tool calls. Each
 * kind has its text in one piece; a list of runs has the order. A stream sends runs from where it
 * is (struct output_at); a whole answer takes the texts.
 *
 * Everything here is a function of the output's bytes alone. Since a generation keeps its tokens
 * and text when the worker dies, nothing is parsed or reported twice.
 */

#include "api/toolcall/toolcall.h"

#define OUTPUT_PIECE_MAX (32u << 10)

enum output_kind { OUTPUT_CONTENT, OUTPUT_REASONING, OUTPUT_CALL };
#define OUTPUT_KINDS 3

/* A tool call; begin <= end. text[OUTPUT_CALL] has the arguments of all calls, one after the
 * other. */
struct output_call {
    char id[TOOLCALL_ID_MAX + 1], name[TOOLCALL_NAME_MAX + 1];
    /* arguments, in text[OUTPUT_CALL] */
    size_t begin, end;
    bool complete;
};

/* Bytes [begin, end) of text[kind], without bytes of another kind in between. */
struct output_run {
    enum output_kind kind;
    /* OUTPUT_CALL: number of the call */
    uint32_t call;
    size_t begin, end;
};

/* Invariants: two runs that follow each other differ in kind, unless they are calls; the last run
 * of a kind ends where text[kind] does; each call has one run. Runs and calls only grow. */
struct output_parser {
    struct toolcall_opts opts;
    struct toolcall_parser *parser;
    struct buf text[OUTPUT_KINDS];
    struct output_run *runs;
    struct output_call *calls;
    uint32_t n_runs, cap_runs, n_calls, cap_calls;
    /* tokens inside reasoning, without its markers */
    uint32_t n_reasoning;
    /* after the last whole token */
    bool in_reasoning;
    /* the content ends within reasoning (toolcall_opts.inline_reasoning) */
    bool inlined;
    bool finished;
};

/* Position of a stream: runs before @run were sent. Zeroed at the start. */
struct output_at {
    /* at most n_runs */
    uint32_t run;
    /* bytes of it */
    size_t sent;
    /* OUTPUT_CALL: id and name are sent */
    bool named;
};

/* A piece to send. */
struct output_piece {
    enum output_kind kind;
    uint32_t call;
    /* OUTPUT_CALL: id and name; no text */
    bool begins;
    const char *text;
    size_t len;
};

/* Makes a parser. @opts is copied; the objects to which it points outlive the parser. @max: limit
 * in bytes of each kind's text. 0 or -ENOMEM. */
int output_parser_new(struct output_parser **out, const struct toolcall_opts *opts, size_t max);
struct output_parser *output_parser_free(struct output_parser *s); /* accepts NULL, returns NULL */

/* Returns true if the text of a control token is part of a marker and must be fed to the parser. */
bool output_parser_wants(const struct output_parser *s, const char *text, size_t len);
/* Notes that the next byte begins a special token. */
void output_parser_note_token(struct output_parser *s);
/* Feeds the next bytes of the output. Returns 0, -ENOMEM, or -EMSGSIZE beyond @max. */
int output_parser_feed(struct output_parser *s, const char *data, size_t len);
/* Notes that a token of @token_len bytes has been fed completely. */
void output_parser_count(struct output_parser *s, size_t token_len);
/* Ends the output, @cut: not where the model ended it. Adds the bytes that were held back. Returns
 * as output_parser_feed(); 0 if called again. */
int output_parser_finish(struct output_parser *s, bool cut);

/* Returns true if a call is complete. */
bool output_parser_has_call(const struct output_parser *s);
/* Gets the next piece, of at most @most and OUTPUT_PIECE_MAX bytes; false: there is none yet. @most
 * is that of a character, 4, or more. */
bool output_parser_next(const struct output_parser *s, struct output_at *at, size_t most,
                        struct output_piece *out);
