#pragma once

/*
 * toolcall - what a model wrote, taken apart: reasoning, content and tool calls. Every family of
 * models writes calls in its own way; a format is a table of states (api/toolcall/) that one parser
 * runs over the text as it arrives. Any split of the text into pieces gives the same result; what
 * is held back is bounded. docs/reference/tool-call-formats.md lists the formats.
 *
 * Nothing is lost: what looked like a call and is none comes back as content, byte for byte. Only
 * the markers themselves and white space next to a call or to reasoning are dropped.
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/toolcall/grammar_ir.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/lib_types.h"
#include "text/tokenizer.h"

#define TOOLCALL_NAME_MAX 256u
#define TOOLCALL_ID_MAX 160u
#define TOOLCALL_CALLS_MAX 128u        /* calls of one message; text behind them is content */
#define TOOLCALL_HELD_MAX (256u << 10) /* bytes before a call's name, or of one value */
#define TOOLCALL_WHOLE_MAX (4u << 20)  /* bytes of one call with `whole_calls` */

/* Notations of arguments; see below. */
enum toolcall_args { ARGS_JSON, ARGS_TAGGED, ARGS_PYTHON, ARGS_GEMMA };

/*
 * The syntax of calls, for code that forces them (a grammar). One message's calls are
 *      section_begin call (separator call)* section_end
 *      call = call_begin NAME name_end ARGUMENTS call_end
 * {id} stands for an id (of id_len letters and digits when that is not 0), {index} for the call's
 * number in the message, {name} for NAME once more, {nl} for a line break that may be missing.
 * Optional white space is left out. ARGUMENTS are a JSON object (ARGS_JSON, where nothing else is
 * named), or "key=literal, ..." (ARGS_PYTHON), or {key:value} with <|"|> as quotes (ARGS_GEMMA), or
 * (ARGS_TAGGED)
 *      (key_begin KEY key_end VALUE value_end)*
 * where a VALUE is a bare string or, for what is no string, JSON. key_end_json, if there is one,
 * takes the place of key_end before the latter; {type} in it is the JSON type.
 */
struct toolcall_shape {
    enum toolcall_args args;
    const char *section_begin, *section_end, *separator;
    const char *call_begin, *name_end, *call_end;
    /* other spellings of call_begin and name_end; or NULL */
    const char *call_begin_also, *name_end_also;
    /* characters that NAME cannot have, besides the first one of name_end; NULL: most brackets and
     * quotes, or none in a JSON string */
    const char *name_stops;
    const char *key_begin, *key_end, *key_end_json, *value_end;
    uint8_t id_len;
};

/* A row of the table of formats (formats.c). */
struct toolcall_format {
    const char *name;
    /* texts that a template of this format has */
    const char *detect[3];
    /* a text that the conversation has around a call; or NULL */
    const char *around;
    /* a call starts with one of these; "{" only where a message starts */
    const char *triggers[4];
    /* instead of a trigger: after these nothing but a call comes */
    const char *force_after[3];
    /* so it is after this, where a message begins; or NULL */
    const char *start_after;
    /* A message may begin with a call without a marker; text counts as one once its arguments
     * begin. */
    bool bare;
    /* a trigger inside reasoning ends it */
    bool ends_reasoning;
    /* a call of a tool that was not offered is content */
    bool only_known;
    /* ids of 9 letters and digits */
    bool short_ids;
    /* The format itself tells reasoning from content: what begins reasoning where a message begins,
     * ends its text, leads from there to what follows, and begins an answer. NULL: it does not. */
    struct {
        const char *begin, *stop, *end, *answer;
    } own;
    /* marks that content may stand between; or NULL */
    const char *content_begin, *content_end;
    /* the control token that ends a message with calls, if templates do not write it; or NULL */
    const char *end;
    struct toolcall_shape shape;
    const struct tc_state *states;
    uint8_t start;
};

/* Markers of reasoning, for formats that do not define them. */
struct toolcall_reasoning {
    const char *name, *open, *close;
    /* texts that a template's source must have */
    const char *detect[2];
    /* text that may follow, before calls or content; or NULL */
    const char *then;
};

/* Returns true if @text, what a template writes or its source, has the markers of @f. */
bool toolcall_mentions(const struct toolcall_format *f, const char *text, size_t len);
/* Formats by such a text, the first one of the table, and by name; NULL when there is none.
 * `generic` is never detected: it is for templates that know no tools (toolcall_describe()). */
const struct toolcall_format *toolcall_detect(const char *text, size_t len);
/* Returns the first format whose markers of a call are in @call, and the one around it in @text. */
const struct toolcall_format *toolcall_detect_call(const char *call, size_t call_len,
                                                   const char *text, size_t len);
const struct toolcall_format *toolcall_find(const char *name);
const struct toolcall_format *toolcall_at(size_t i); /* the table, in order; NULL at its end */
const struct toolcall_reasoning *toolcall_detect_reasoning(const char *source, size_t len);
const struct toolcall_reasoning *toolcall_find_reasoning(const char *name);
const struct toolcall_reasoning *toolcall_reasoning_at(size_t i); /* as toolcall_at() */
/* Returns true if @needle stands between the markers of @r, but for white space. */
bool toolcall_encloses(const struct toolcall_reasoning *r, const char *text, size_t len,
                       const char *needle);
/* Returns true if a rendered prompt ends inside reasoning, so that the output starts there. */
bool toolcall_opens_reasoning(const struct toolcall_reasoning *r, const char *prompt, size_t len);
/* Returns true if the prompt ends inside reasoning that the format itself defines. */
bool toolcall_opens_own(const struct toolcall_format *f, const char *prompt, size_t len);
/* Returns true if a rendered prompt ends behind reasoning that the template has closed. */
bool toolcall_closes_reasoning(const struct toolcall_reasoning *r, const char *prompt, size_t len);

/* Returns true if one of their markers contains @text: the text of a control token that matters to
 * a parser. Either may be NULL. */
bool toolcall_has_marker(const struct toolcall_format *f, const struct toolcall_reasoning *r,
                         const char *text, size_t len);

/* What the marker of reasoning has to be behind content, where a model may write about markers:
 * text that begins a line outside of code; such a text that begins with a special token, or a
 * control token anywhere, both noted by toolcall_note_token(). */
enum toolcall_mark { MARK_TEXT, MARK_TOKEN, MARK_CONTROL };

struct toolcall_opts {
    /* NULL: content and reasoning only */
    const struct toolcall_format *format;
    /* NULL: none, or the format's own */
    const struct toolcall_reasoning *reasoning;
    /* tools of the request; outlive the parser. NULL: calls are content */
    yyjson_val *tools;
    /* toolcall_opens_reasoning() */
    bool in_reasoning;
    enum toolcall_mark mark;
    /* all content becomes one text, and all reasoning: pieces of it that reasoning or content
     * separates keep white space between them */
    bool joined;
    /* content is not interrupted by reasoning: a grammar made it */
    bool unbroken;
    /* output_parser.h: reasoning is part of the content, with its marks */
    bool inline_reasoning;
    /* drop what is neither call nor reasoning */
    bool only_calls;
    /* a call is reported when it is complete; a broken one is content */
    bool whole_calls;
    /* 0: TOOLCALL_CALLS_MAX; 1: no parallel calls */
    uint32_t max_calls;
    /* 0: TOOLCALL_HELD_MAX */
    size_t max_held;
    /* 0: TOOLCALL_WHOLE_MAX */
    size_t max_whole;
    /* ids are a function of it and of the call's index */
    uint64_t seed;
};

enum toolcall_kind {
    /* data */
    TOOLCALL_CONTENT,
    /* data */
    TOOLCALL_REASONING,
    /* index, id, name */
    TOOLCALL_BEGIN,
    /* index, data: the next bytes of a JSON object */
    TOOLCALL_ARGS,
    /* index, complete: the arguments are a whole JSON object */
    TOOLCALL_END,
};

struct toolcall_event { /* valid during the call of the sink */
    enum toolcall_kind kind;
    bool complete;
    uint32_t index;
    const char *id, *name;
    const char *data;
    size_t len;
};

/* Not 0: stop, and toolcall_feed() returns it. */
typedef int (*toolcall_sink)(void *ctx, const struct toolcall_event *e);

struct toolcall_parser;

/* At the beginning of one output. @opts is copied, what it points to outlives the parser. 0 or
 * -ENOMEM. */
int toolcall_parser_new(struct toolcall_parser **out, const struct toolcall_opts *opts);
struct toolcall_parser *toolcall_parser_free(struct toolcall_parser *p); /* accepts NULL */
DEFINE_FREEP(struct toolcall_parser, toolcall_parser)

/* Notes that the next byte to be fed is the first one of a special token. */
void toolcall_note_token(struct toolcall_parser *p);
/* The next bytes of the output. Returns 0, -ENOMEM, or what the sink returned; then the parser is
 * of no more use. Linear in the bytes, however they are cut. */
int toolcall_feed(struct toolcall_parser *p, const char *data, size_t len, toolcall_sink sink,
                  void *ctx);
/* Ends the input, @cut: not where the model ended it; nothing may be fed afterwards. A call that
 * lacks nothing but its end gets it, where the model ended; other open calls end with `complete`
 * false. Returns like toolcall_feed(). */
int toolcall_finish(struct toolcall_parser *p, bool cut, toolcall_sink sink, void *ctx);
/* returns true if the fed bytes end in reasoning */
bool toolcall_in_reasoning(const struct toolcall_parser *p);
uint32_t toolcall_n_calls(const struct toolcall_parser *p); /* number of calls that have begun */
size_t toolcall_held(const struct toolcall_parser *p); /* bytes of text and arguments in memory */

/* ---- forcing calls */

struct toolcall_tool {
    const char *name;
    /* the schema of its arguments, or NULL */
    yyjson_val *parameters;
    /* the schema by which calls are read, if it is another; or NULL */
    yyjson_val *sent;
    /* the field that the schema came from */
    const char *param;
    /* any arguments */
    bool loose;
    /* the tool takes one string, `input`, described by: */
    bool takes_text;
    /* "regex" or "lark"; NULL: nothing */
    const char *syntax;
    /* the source */
    yyjson_val *text;
};

struct toolcall_force {
    const struct toolcall_format *format;
    /* tools that may be called */
    const struct toolcall_tool *tools;
    /* max_calls 0: TOOLCALL_CALLS_MAX */
    uint32_t n_tools, max_calls;
    /* write only what follows toolcall_after() */
    bool after;
    /* NULL, or as that of struct grammar_limits: what a refusal is about */
    char *place;
};

/* The calls of one message as a node of grammar/constraint.h, so that what is generated under it is
 * read by this format's parser as calls whose arguments fit. Returns 0, -ENOMEM, or -EINVAL with
 * @err: a schema or name cannot be written in this format. */
int toolcall_force(yyjson_mut_val **out, struct nodes *n, const struct toolcall_force *f,
                   struct err *err);
/* Returns true for a function's name that this format's parser reads as it is forced. */
bool toolcall_can_carry(const struct toolcall_format *f, const char *name);
/* Appends a function's name as calls of this shape have it: escaped, if it is in a JSON string. */
int toolcall_spell_name(const struct toolcall_shape *s, const char *name, size_t len,
                        struct buf *out);
/* Returns the strings after which a model that is free has begun a call, in order; NULL at their
 * end. */
const char *toolcall_after(const struct toolcall_format *f, size_t i);
/* Writes to @out what begins a call of @name, too, but only where a message begins. *held: the text
 * is the beginning of what toolcall_force() writes with `after`, else what it writes follows, for
 * any name. false: nothing does, or it does not fit. */
bool toolcall_start(const struct toolcall_format *f, const char *name, char *out, size_t size,
                    bool *held);

/* ---- past calls for templates that leave them out */

struct toolcall_marks {
    /* sorted, disjoint; the caller's */
    struct text_range *v;
    size_t n, cap;
};

/* Returns true if past calls can be written in this format: it needs no ids and has JSON's
 * values. */
bool toolcall_can_write(const struct toolcall_format *f);
/* Appends the calls of one message, [{"function": {"name": .., "arguments": ..}}, ..], to @out as
 * the model would have written them, and to @own the bytes of it that are the format's literals.
 * Returns 0, -ENOMEM, -EMSGSIZE. */
int toolcall_write_calls(const struct toolcall_format *f, yyjson_mut_val *calls, struct buf *out,
                         struct toolcall_marks *own);

/*
 * The generic form, for templates that know no tools: what a system message says about them, and
 * how earlier calls and their results are put into assistant and user messages. All append to @out.
 */
int toolcall_describe(struct buf *out, yyjson_val *tools);
int toolcall_write_call(struct buf *out, const char *name, const char *args, size_t args_len);
int toolcall_write_result(struct buf *out, const char *name, const char *result, size_t len);
