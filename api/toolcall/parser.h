#pragma once

/*
 * parser - the machine that runs a format's table of states.
 *
 * A format is an array of `struct tc_state`; a state says what kind of text is read there, and its
 * edges say which literal ends it and what is next. State TC_CONTENT (0) is content and TC_REASON
 * (1) is reasoning in every format; their edges are the format's triggers, and either row may be
 * left out. Everything else is in between.
 *
 *      content ──edge with OPEN──> a call may be here: its bytes are kept in `raw`
 *         ^                             │ EXPECT, NAME, KEY, ...      │ a literal not expected
 *         │                             v                             v
 *         │                       name known, first byte         raw is content after all
 *         │                       of arguments: COMMITTED
 *         └────────── END ──────────────┘ what breaks now ends the call as incomplete
 *
 * With whole_calls, or after an edge with FREE, a call commits at its END.
 *
 * The window `win` holds the bytes that are not decided yet. A state looks at win[pos..]; what it
 * cannot decide (the text may still become a literal) stays there for the next feed. A decision
 * depends on the bytes alone, never on where a feed ended: so any split gives the same events.
 */

#include "api/toolcall/scan.h"
#include "api/toolcall/toolcall.h"

#define TC_CONTENT 0
#define TC_REASON 1
#define TC_FIRST 2  /* first of a format's own states */
#define TC_FAIL 255 /* next state for bytes that are not a call */

#define TC_SPACE_MAX 64u /* white space that is held until the text behind it is known */
#define TC_MARKS 64u     /* bytes of the window of which the beginning of a token is known */
#define TC_KEY_MAX 256u
#define TC_ENDING_MAX 128u
#define TC_SKIP_MAX 256u
#define TC_QUOTED_MAX 16384u /* longest string behind a possible end of the value */

enum tc_kind {
    /* sent as content or reasoning */
    TC_TEXT,
    /* white space, then a literal; anything else: `other` */
    TC_EXPECT,
    /* a function's name, up to a literal */
    TC_NAME,
    /* an id, up to a literal */
    TC_ID,
    /* a parameter's name, up to a literal */
    TC_KEY,
    /* dropped, up to a literal */
    TC_SKIP,
    /* a parameter's bare value, up to a literal */
    TC_VALUE,
    /* a parameter's value as `mode` reads it */
    TC_LITERAL,
    /* one object with all arguments, read in `mode`; next: `other`, without arguments */
    TC_ARGUMENTS,
    /* {"name": .., "arguments": ..}; the brace is read */
    TC_OBJECT,
    /* {NAME: arguments}; the brace is read */
    TC_NAMED,
};

enum tc_act {
    /* a call may begin with this literal */
    TC_OPEN = 1,
    /* the name is complete */
    TC_CALL = 2,
    /* so is the call */
    TC_END = 4,
    /* the literal is not taken */
    TC_PEEK = 8,
    /* only if just white space is before it */
    TC_START = 16,
    /* the value is a string, independently of the schema */
    TC_STRING = 32,
    /* the value is JSON */
    TC_JSON = 64,
    /* the id is functions.NAME:INDEX */
    TC_NAME_IN_ID = 128,
    /* no grammar holds such a call, so that it may break: it is told whole */
    TC_FREE = 256,
    /* the name of an offered tool comes before the literal */
    TC_TOOL = 512,
};

/* A literal that ends a state's text, or begins a call; never "". */
struct tc_edge {
    const char *text;
    uint8_t next;
    uint16_t act;
};

/* A row of a format's table; an edge is taken in the table's order. */
struct tc_state {
    /* mode: enum scan_mode */
    uint8_t kind, mode;
    uint8_t next, other;
    /* on the way to `next`; of EXPECT, to `other`: TC_OPEN or nothing */
    uint16_t act;
    const struct tc_edge *edges;
    uint8_t n_edges;
    /* VALUE: literals of which one follows; ends with NULL */
    const char *const *follow;
};

#define TC_EDGES(...)                                                                              \
    .edges = (const struct tc_edge[]){__VA_ARGS__},                                                \
    .n_edges = sizeof((const struct tc_edge[]){__VA_ARGS__}) / sizeof(struct tc_edge)

/* Rows of a table. Text of @kind, up to one of the edges. */
#define TC_READS(kind_, ...)                                                                       \
    { .kind = (kind_), TC_EDGES(__VA_ARGS__) }
/* White space, then one of the edges; anything else is @other_'s. */
#define TC_EXPECTS(other_, ...)                                                                    \
    { .kind = TC_EXPECT, .other = (other_), TC_EDGES(__VA_ARGS__) }
/* A bare value, up to an edge that one of @follow_ follows. */
#define TC_VALUE_BEFORE(follow_, ...)                                                              \
    { .kind = TC_VALUE, .follow = (follow_), TC_EDGES(__VA_ARGS__) }

/* The call that is being read. open: the bytes may be a call; has_name: its name is complete;
 * committed: it was reported, so an error now ends it. committed implies has_name implies open. */
struct tc_call {
    bool open, has_name, committed, has_args;
    /* reported when it is complete */
    bool whole;
    /* found not to be a call during another action */
    bool broken;
    uint32_t n_params;
    char name[TOOLCALL_NAME_MAX + 1], id[TOOLCALL_ID_MAX + 1];
};

/* TC_OBJECT's own states are in object.c. */
struct tc_object {
    uint8_t step, key, nested;
    bool has_args;
    /* brackets were missing in the arguments */
    bool mended;
    /* a key, name or id as JSON, or arguments that are a string */
    struct buf text;
};

/* Tracks whether the position in a value is inside a string. */
struct tc_quotes {
    enum { QUOTES_BEGIN, QUOTES_ON, QUOTES_OFF } state;
    /* quote of the open string, or 0 */
    char quote;
    /* after a backslash in it */
    bool escape;
    /* the value is one string */
    bool one;
};

/* A parameter's bare value (TC_VALUE). `text` is empty for a value that is sent as it arrives. */
struct tc_value {
    /* decided by the text itself */
    bool forced_string, forced_json;
    /* sent as it arrives */
    bool string;
    unsigned types;
    struct tc_quotes quotes;
    /* anything else, until its end */
    struct buf text;
};

/* Tracks the line of content that is being read, and whether it is in a fenced block of code. The
 * first characters of a line are those of a fence, of which there are n_first, or others. */
struct tc_lines {
    /* the line has a character that is no white space */
    bool begun;
    /* another character follows the first ones */
    bool closed;
    /* text does, */
    bool more;
    /* with the fence's character in it */
    bool again;
    /* '`', '~', or 0 */
    char first;
    size_t n_first;
    /* character of the fence of the open block; 0: none is open */
    char fence;
    size_t n_fence;
};

/* Invariants, which hold between two steps: pos <= win.len; no call is open in a text state; raw
 * and args are empty unless a call is open, args also once it is committed; out is empty; n_calls
 * counts the calls that were reported, at most TOOLCALL_CALLS_MAX. */
struct toolcall_parser {
    struct toolcall_opts opts;
    toolcall_sink sink;
    void *ctx;
    int error;
    /* back: the text state the current call was found in */
    uint8_t state, back;
    /* seen: text other than white space, since the start or the last call */
    bool final, seen;
    /* white space at a segment's start is dropped: it follows a call */
    bool spaced;
    /* the state has taken bytes */
    bool entered;
    /* any are looked for */
    bool calls;
    uint32_t n_calls;
    struct tc_edge reason_open, reason_close;
    /* What ends calls with tags, without its white space; where a value has no end of its own, this
     * at the end of the text is one: edge `last`. */
    char ending[TC_ENDING_MAX];
    struct tc_edge last;
    struct buf win;
    size_t pos;
    char space[TC_SPACE_MAX];
    size_t n_space;
    bool space_is_reasoning;
    /* white space before reasoning that interrupts content */
    char gap[TC_SPACE_MAX];
    size_t n_gap;
    /* Content has a marker of reasoning as text. A grammar of calls may take it for one, and then
     * leaves the calls behind it free. */
    bool mentioned;
    /* reasoning was reported */
    bool reasoned;
    /* so that a line break comes before more of it */
    bool reason_gap;
    struct tc_lines lines;
    /* bit i: a special token begins at win[i] */
    uint64_t tokens;
    /* bytes of the open call that have not been reported */
    struct buf raw;
    /* before it is committed */
    struct buf args;
    struct buf out;
    struct tc_call call;
    char key[TC_KEY_MAX + 1];
    /* bytes of name, id, key or string so far */
    size_t n_text;
    struct tc_object object;
    struct tc_value value;
    struct scan scan;
    /* hashes of the models' own ids */
    uint64_t ids[TOOLCALL_CALLS_MAX];
};

/* Results of a step. Negative: an error. */
enum tc_step { TC_MORE, TC_MOVED, TC_BROKEN };

/* parser.c: the window. */

/* Takes @n bytes of the window; bytes of a call that is not reported yet are stored in raw. Returns
 * false if they exceed its limit, so that the bytes are not a call. */
bool parser_consume(struct toolcall_parser *p, size_t n);
/* Takes bytes that are sent as arguments at once. */
bool parser_pass(struct toolcall_parser *p, size_t n);
/* Goes to state @next with the actions @act (enum tc_act). */
void parser_go(struct toolcall_parser *p, uint8_t next, unsigned act);
/* Returns the rest of the input; *@len bytes. */
const char *parser_at(const struct toolcall_parser *p, size_t *len);

/* events.c: sends events. A failure of the sink or of memory is in p->error. */

/* Sends text outside of calls; white space at its end is held. */
void events_text(struct toolcall_parser *p, bool reasoning, const char *data, size_t len);
void events_drop_space(struct toolcall_parser *p);  /* the white space that is held */
void events_flush_space(struct toolcall_parser *p); /* tells it */
void events_segment(struct toolcall_parser *p); /* a marker: white space next to it is dropped */
/* reasoning interrupts content: the white space before it is told if the content goes on */
void events_interrupt(struct toolcall_parser *p);
/* Moves @l over a byte of content. */
void events_line(struct tc_lines *l, char c);
void events_open(struct toolcall_parser *p); /* a call may begin here; none is open */
void events_name(struct toolcall_parser *p); /* call.name is complete, or no name: broken */
/* Adds the next bytes of the arguments, as JSON. The first ones commit the call if it has a name
 * and calls are not reported as a whole. */
void events_args(struct toolcall_parser *p, const char *data, size_t len);
void events_end(struct toolcall_parser *p); /* the call is complete, or broken: it has no name */
void events_break(
    struct toolcall_parser *p); /* the bytes are no call; a call that was reported is incomplete */
void events_out(struct toolcall_parser *p); /* `out` goes to the arguments */

/* states.c, object.c: one step in the state @s, the window not empty: enum tc_step, or -ENOMEM. */
int states_step(struct toolcall_parser *p, const struct tc_state *s);
int object_step(struct toolcall_parser *p, const struct tc_state *s);
/* returns true if the object has all members that matter */
bool object_may_end(const struct toolcall_parser *p);
/* returns true inside the arguments of a call whose name is known */
bool object_in_arguments(const struct toolcall_parser *p);

/* value.c */
enum value_type {
    VALUE_STRING = 1,
    VALUE_NUMBER = 2,
    VALUE_BOOLEAN = 4,
    VALUE_NULL = 8,
    VALUE_OBJECT = 16,
    VALUE_ARRAY = 32,
};
bool value_knows(yyjson_val *tools, const char *name); /* returns true if a tool has this name */
/* Returns true if the name of a tool begins with the @len bytes of @text. */
bool value_may_know(yyjson_val *tools, const char *text, size_t len);
/* Returns the types, VALUE_.., that the tool's schema allows a parameter; 0: it names none. */
unsigned value_types(yyjson_val *tools, const char *name, const char *key);
void value_key(struct toolcall_parser *p); /* `"key": `, after a brace or a comma */
/* begins the value of parameter p->key, and looks up its type */
void value_begin(struct toolcall_parser *p);
/* feeds the next bytes of the value */
void value_feed(struct toolcall_parser *p, const char *data, size_t len);
/* ends the value: reports held bytes as JSON of a fitting type */
void value_end(struct toolcall_parser *p);

/* The formats' tables: see formats.c. */
extern const struct toolcall_format format_hermes, format_ernie, format_generic, format_qwen_coder,
    format_seed, format_llama, format_mistral_json, format_mistral_args, format_mistral_id,
    format_deepseek_v3, format_deepseek_v31, format_deepseek_dsml, format_deepseek_v32,
    format_harmony, format_glm, format_hunyuan, format_kimi_k2, format_kimi_k3, format_minimax_m1,
    format_minimax_m2, format_gemma, format_lfm, format_olmo, format_command_r, format_command_r7b,
    format_apertus, format_nemotron, format_apriel, format_functionary, format_firefunction,
    format_solar, format_gigachat, format_hunyuan_a13b, format_minicpm, format_granite, format_phi4,
    format_atem, format_hyperclova, format_llama4, format_llama4_python, format_glm4, format_falcon,
    format_hunyuan_dense, format_internlm, format_plamo, format_jamba;
