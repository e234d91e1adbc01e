#pragma once

/*
 * machine - runs the automaton: sets of configurations, and the steps by which a byte changes them.
 *
 * All sets lie in one array that is used as a stack: a new set is built at its end. Frame 0 is
 * below everything: the end of the text, or in classify.c the unknown caller.
 */

#include <errno.h>

#include "grammar/automaton/automaton.h"

#define SET_MAX 256              /* most configurations in a set */
#define ENTER_DEPTH 8192         /* machine.depth: 4 MiB of a thread's stack under a sanitizer */
#define MEMBERS_NODE 0x80000000u /* frame.call of a frame that holds a word of a set (members.c) */

struct frame {
    uint32_t parent, call, count;
    /* in its hash bucket */
    uint32_t next;
    uint32_t depth;
};

/* A configuration is one reading of the text so far: a state, the register of its rule, and its
 * stack, given by the top frame. A register with many members or a list of items is a frame,
 * too. */
struct config {
    uint32_t state, reg, frame;
    /* an earlier item of which the current one is a prefix (distinct.c), or 0 */
    uint32_t match;
};

/* A set of different configurations: config[begin, end). */
struct set {
    uint32_t begin, end;
    /* the text may end here */
    bool can_end;
};

/* Finds the configurations of a large set, config[begin, begin + n), the last ones. slot[]: 0, or
 * 1 + the place behind begin. */
#define SEEN_FROM 12 /* configurations; fewer are compared one by one */
#define SEEN_SLOTS 512
struct seen {
    uint32_t begin, n;
    uint16_t slot[SEEN_SLOTS];
};

/* Invariants: a frame's parent has a smaller number; no two frames have the same parent, call and
 * count; n_buckets is a power of two and at least cap_frames, and in a bucket, frames with larger
 * numbers come first; only the last set grows; after an error nothing is added any more. For one
 * thread at a time. */
struct machine {
    const struct grammar *g;
    struct frame *frame;
    struct config *config;
    uint32_t *bucket;
    uint32_t n_frames, cap_frames, n_configs, cap_configs, n_buckets;
    /* Holds the bytes read so far, from text[1] on, where items must differ; n_text is 0
     * otherwise. */
    uint8_t *text;
    uint32_t n_text, cap_text;
    /* a step's byte is text[n_text - 1]: items that end are known */
    bool reads;
    /* configurations dropped because items must differ */
    uint32_t n_pruned;
    /* steps left */
    uint64_t fuel;
    /* nesting of machine_enter() */
    uint32_t depth;
    /* sticky: -ENOMEM, -E2BIG, -EAGAIN */
    int error;
    struct seen seen;
    /* Refuses slow work: -EAGAIN where fuel runs out, or a token class or a shortest completion
     * would have to be made. */
    bool quick;
};

/* Initializes a machine with frame 0 and no configuration; @g must outlive it. Returns 0 or
 * -ENOMEM. */
int machine_init(struct machine *m, const struct grammar *g);
void machine_deinit(struct machine *m); /* accepts a zeroed one */
/* Sets *@out to the set of configurations before the first byte. */
void machine_start(struct machine *m, struct set *out);
/* Sets *@out to the set after @symbol. Returns false if it is empty and the text cannot end. */
bool machine_step(struct machine *m, const struct set *from, unsigned symbol, struct set *out);
/* Does the work of machine_step() when the edge of all of @from for @symbol is known to lead to
 * @to. */
bool machine_follow(struct machine *m, const struct set *from, unsigned symbol, uint32_t to,
                    struct set *out);
/* Enters the calls of @state, which is in no loop and no object, with the stacks of @from. */
void machine_call(struct machine *m, const struct set *from, uint32_t state, struct set *out);
/* Returns from the rule of @frame: adds the configurations that follow to @out. */
void machine_return(struct machine *m, struct set *out, uint32_t reg, uint32_t frame,
                    uint32_t match);
/* Returns the frame with these values and makes it if needed; 0 if the stack is at its limit or
 * on an error. */
uint32_t machine_push(struct machine *m, uint32_t parent, uint32_t call, uint32_t count);
void machine_forget_frames(struct machine *m, uint32_t n); /* keeps the first @n */
void machine_rehash(struct machine *m); /* rebuilds the hash table of the frames */
int machine_reserve(struct machine *m, uint32_t n_configs);
/* Drops the frames that no configuration of config[0, n_configs) needs and renumbers. */
void machine_collect(struct machine *m);
/* Returns the sum of the stack depths of @s, an upper bound of the frames that it needs. */
uint64_t machine_stacks(const struct machine *m, const struct set *s);

/* Spends one step of fuel. Returns false if none is left or an earlier step failed; m->error
 * says why. */
static inline bool machine_spend(struct machine *m) {
    if (m->fuel-- > 0 && !m->error)
        return true;
    m->fuel = 0;
    if (!m->error)
        m->error = m->quick ? -EAGAIN : -E2BIG;
    return false;
}

/* Returns an empty set at the end of the stack of sets. */
static inline struct set set_open(const struct machine *m) {
    return (struct set){.begin = m->n_configs, .end = m->n_configs};
}

/* Returns the target of @state for @symbol, or NO_STATE. */
static inline uint32_t state_next(const struct grammar *g, const struct state *s, unsigned symbol) {
    if (s->dense >= 0 && symbol < TOKEN_SYMBOL)
        return g->table[s->dense][symbol];
    const struct edge *e = g->edge + s->edge, *end = e + s->n_edges;

    while (e < end && e->hi < symbol)
        e++;
    if (e < end && e->lo <= symbol)
        return e->to;
    return NO_STATE;
}

/* Appends @byte to m->text if the grammar needs the text. Returns false on an error. */
bool machine_read(struct machine *m, uint8_t byte);

/* ---- registers: what a rule remembers besides its state
 *
 * A number beside the state saves an automaton many states: 100,000 for a `maxLength`, 2^n for n
 * properties in any order. Each kind of register is one row, `struct register_kind`, in a file of
 * its own; the machine and the walks ask the row and do not know the kind:
 *
 *     kind      file        register                    used for
 *     counted   counted.c   characters so far           maxLength, x{m,n} of one character
 *     names     names.c     node in a tree of names     a key that is none of some names
 *     within    within.c    characters so far           a pattern beside a large maxLength
 *     members   members.c   the set of those written    properties in any order
 *     distinct  distinct.c  the list of items           uniqueItems
 *
 * The call that entered the rule (struct call_desc) has the limits of counted, names and within;
 * members and distinct belong to the rule itself.
 */

/* A kind of register. A NULL function stands for the result that its comment gives. Configurations
 * without a frame have no call, so the limits of a call do not apply to them. */
struct register_kind {
    /* Returns whether an edge of @state leads to a text that is still allowed. NULL: always. */
    bool (*is_open)(const struct machine *m, uint32_t state, uint32_t reg);
    /* Moves *@reg along an edge of @from with @byte to @to. Returns whether it may be taken. NULL:
     * it may, and the register stays. */
    bool (*step)(const struct grammar *g, const struct call_desc *d, const struct state *from,
                 uint32_t to, uint8_t byte, uint32_t *reg);
    /* Returns whether the rule may end at an accepting state of it. NULL: it may. */
    bool (*may_end)(const struct machine *m, const struct call_desc *d, uint32_t state,
                    uint32_t reg);
    /* Returns how many arbitrary characters the register still allows. NULL: any number. */
    uint32_t (*n_free)(const struct grammar *g, const struct call_desc *d, uint32_t state,
                       uint32_t reg);
    /* Enters call @d from @from: *@kept is the value of the register that the frame keeps, *@match
     * the match of the callee. Returns whether it may be called. NULL: it may, and 0 is kept. */
    bool (*enter)(struct machine *m, const struct config *from, const struct call_desc *d,
                  uint32_t *kept, uint32_t *match);
    /* Returns to @state from call @d of @frame: *@reg has the value that the frame kept, and
     * becomes the register. Returns whether the callee may have ended. NULL: it may. */
    bool (*on_return)(struct machine *m, const struct call_desc *d, uint32_t state, uint32_t frame,
                      uint32_t *reg, uint32_t *match);
    /* Returns whether the register is a frame of the machine. NULL: it is a number. */
    bool (*is_frame)(const struct members *k);
};

extern const struct register_kind REGISTER_COUNTED, REGISTER_NAMES, REGISTER_WITHIN;
extern const struct register_kind REGISTER_MEMBERS, REGISTER_DISTINCT;
/* Gives the register of a rule that counts, by the kind of its call (enum call_kind); NULL where
 * calls of this kind have none. */
extern const struct register_kind *const REGISTER_OF_CALL[];

#define STATE_REGISTER (STATE_LOOP | STATE_WITHIN | STATE_MEMBERS)

/* Returns the members of the rule of @state. */
static inline const struct members *members_of(const struct grammar *g, uint32_t state) {
    return &g->members[g->rule[g->state[state].rule].members];
}

/* Returns the kind of register of @state in a rule that @d called (NULL: unknown), or NULL. */
static inline const struct register_kind *register_of(const struct grammar *g, uint32_t state,
                                                      const struct call_desc *d) {
    unsigned flags = g->state[state].flags;

    if (!(flags & STATE_REGISTER))
        return NULL;
    if (flags & STATE_MEMBERS) {
        if (members_of(g, state)->distinct)
            return &REGISTER_DISTINCT;
        return &REGISTER_MEMBERS;
    }
    if (!d)
        return NULL;
    return REGISTER_OF_CALL[d->kind];
}

/* Returns the call that pushed @frame, or NULL for the frame below everything. */
static inline const struct call_desc *desc_of(const struct machine *m, uint32_t frame) {
    if (!frame)
        return NULL;
    return &m->g->desc[m->g->call[m->frame[frame].call].desc];
}

/* Returns the kind of register of configuration @c, or NULL. */
static inline const struct register_kind *register_at(const struct machine *m,
                                                      const struct config *c) {
    if (!(m->g->state[c->state].flags & STATE_REGISTER))
        return NULL;
    return register_of(m->g, c->state, desc_of(m, c->frame));
}

/* Moves *@reg along an edge to @to in a rule that @d called. Returns whether the fewest characters
 * behind @to still fit. */
bool within_step(const struct grammar *g, const struct call_desc *d, uint32_t to, uint32_t *reg);

/* ---- members in any order (members.c) */

/* Returns numbers 32 w to 32 w + 31 of the set @reg; bit i: member 32 w + i is in it. @m may be
 * NULL for the empty set, 0. */
uint32_t members_word(const struct machine *m, const struct members *k, uint32_t reg, uint32_t w);
/* Returns the set with member @i; 0 with m->error set if memory is short. */
uint32_t members_add(struct machine *m, const struct members *k, uint32_t reg, uint32_t i);

/* ---- items that must differ (distinct.c) */

/* Returns whether @d calls an item that must differ from those before it; @to: the state behind the
 * call. */
static inline bool is_distinct(const struct grammar *g, const struct call_desc *d, uint32_t to) {
    return g->n_texts && d->kind == CALL_ONCE && members_of(g, to)->distinct;
}

/* Returns the match behind one more byte, for the match of a configuration with @frame, which is
 * not 0. */
uint32_t distinct_step(struct machine *m, uint32_t frame, uint32_t match, unsigned symbol);
/* Drops the configurations of @s, the last set, whose items cannot differ any more. */
void distinct_prune(struct machine *m, struct set *s);
/* Adds to @out the bytes by which earlier items go on from a match that is not 0. */
void distinct_next(const struct machine *m, uint32_t frame, uint32_t match, struct byte_set *out);
/* Returns the length in bytes of the longest item before the one that @frame is in, or 0 if it is
 * in no item; *n_unknown: number of these items that ended in a look-ahead. */
uint32_t distinct_longest(const struct machine *m, uint32_t frame, uint32_t *n_unknown);
