/*
 * machine - runs the automaton: sets of configurations, and how a byte changes a set.
 *
 * A text can have several readings at the same time: after `[12` the number may go on, or it has
 * ended and `,` or `]` comes next. The automaton is therefore simulated with a set of
 * configurations, one for each reading, as one simulates an NFA with a set of states. Since rules
 * call rules, a configuration also has a stack of calls:
 *
 *     value  = array | number                text so far: [12
 *     array  = "[" value ("," value)* "]"
 *
 *     configuration              frame, the top of its stack
 *     number, behind a digit     1: return into array, behind its first value; its parent is 0
 *     array, before , or ]       0: below everything; a return ends the text
 *
 * Copying stacks for each reading would make ambiguity expensive. All stacks are one tree instead
 * (a cactus stack): a frame names its parent, the call to which its rule returns, and how often a
 * repeated call has returned. Two properties keep a step cheap:
 *
 * - Frames are hash-consed: the frame of a given parent, call and count exists once, so equal
 *   stacks have equal frame numbers, two configurations are equal when four integers are, and an
 *   ambiguous grammar whose readings meet again goes on with one configuration.
 * - Frames never change and are only added at the end. A look-ahead (a mask, a draft) pushes frames
 *   and sets as it likes and truncates both arrays when it is done; the history of a request needs
 *   to keep its configurations only.
 *
 * A step takes, for each configuration, the edge of its state for the byte. machine_enter() then
 * computes the closure of the target, all that can be reached from it without reading:
 *
 *     the target itself         if it has edges
 *     starts of called rules    for each call of the target: push a frame
 *     the caller's next state   if the rule may end here: pop the frame, and close that state
 *
 * The closure terminates: returns lower the stack, a call raises it, no rule matches the empty text
 * and no rule calls itself before it has read something (analyse.c). A call that is the last thing
 * of its rule pushes no frame, so recursion at the end of a rule runs in constant space.
 *
 * A register holds what would otherwise multiply the states, as the number of characters of a
 * string with a maxLength; machine.h describes the kinds.
 *
 * Costs. A set is small: one or two configurations in JSON. SET_MAX bounds what an ambiguous
 * grammar can make of it, fuel bounds the work, ENTER_DEPTH the recursion; all three fail with
 * -E2BIG (a quick machine that runs out of fuel: -EAGAIN). Frames that no configuration needs any
 * more are dropped by machine_collect() (mark, then compact), which runs when the number of frames
 * has doubled, so its cost is amortised over the accepted tokens.
 */

#include "grammar/machine/machine.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

const struct register_kind *const REGISTER_OF_CALL[] = {
    [CALL_COUNTED] = &REGISTER_COUNTED,
    [CALL_NAMES] = &REGISTER_NAMES,
    [CALL_WITHIN] = &REGISTER_WITHIN,
};

int machine_init(struct machine *m, const struct grammar *g) {
    *m = (struct machine){.g = g, .cap_frames = 64, .cap_configs = 256, .n_buckets = 128};
    m->frame = malloc(m->cap_frames * sizeof(*m->frame));
    m->config = malloc(m->cap_configs * sizeof(*m->config));
    m->bucket = malloc(m->n_buckets * sizeof(*m->bucket));
    if (!m->frame || !m->config || !m->bucket) {
        machine_deinit(m);
        return -ENOMEM;
    }
    memset(m->bucket, 0xff, m->n_buckets * sizeof(*m->bucket));
    m->frame[0] = (struct frame){.call = UINT32_MAX};
    m->n_frames = 1;
    m->n_text = g->n_texts != NULL;
    m->fuel = UINT64_MAX;
    return 0;
}

void machine_deinit(struct machine *m) {
    free(m->frame);
    free(m->config);
    free(m->bucket);
    free(m->text);
    *m = (struct machine){0};
}

static uint32_t machine_bucket(const struct machine *m, uint32_t parent, uint32_t call,
                               uint32_t count) {
    uint64_t h = (parent * 0x9E3779B97F4A7C15u) ^ (call * 0xC2B2AE3D27D4EB4Fu) ^
                 (count * 0x165667B19E3779F9u);

    return (uint32_t)(h >> 32) & (m->n_buckets - 1);
}

static void machine_insert(struct machine *m, uint32_t i) {
    struct frame *f = &m->frame[i];
    uint32_t h = machine_bucket(m, f->parent, f->call, f->count);

    f->next = m->bucket[h];
    m->bucket[h] = i;
}

void machine_rehash(struct machine *m) {
    memset(m->bucket, 0xff, m->n_buckets * sizeof(*m->bucket));
    for (uint32_t i = 1; i < m->n_frames; i++)
        machine_insert(m, i);
}

static bool grow_frames(struct machine *m) {
    uint32_t cap = m->cap_frames * 2;

    if (!array_resize(&m->frame, cap, sizeof(*m->frame)) ||
        !array_resize(&m->bucket, cap * 2, sizeof(*m->bucket))) {
        m->error = -ENOMEM;
        return false;
    }
    m->cap_frames = cap;
    m->n_buckets = cap * 2;
    assert(m->n_frames < cap && !(m->n_buckets & (m->n_buckets - 1)));
    machine_rehash(m);
    return true;
}

uint32_t machine_push(struct machine *m, uint32_t parent, uint32_t call, uint32_t count) {
    for (uint32_t i = m->bucket[machine_bucket(m, parent, call, count)]; i != UINT32_MAX;
         i = m->frame[i].next) {
        const struct frame *f = &m->frame[i];

        if (f->parent == parent && f->call == call && f->count == count)
            return i;
    }
    if (!(call & MEMBERS_NODE) && m->frame[parent].depth >= m->g->max_stack)
        return 0;
    if (m->n_frames == m->cap_frames && !grow_frames(m))
        return 0;
    assert(parent < m->n_frames);
    uint32_t i = m->n_frames++;

    m->frame[i] = (struct frame){
        .parent = parent, .call = call, .count = count, .depth = m->frame[parent].depth + 1};
    machine_insert(m, i);
    return i;
}

/* Removes the frames from number @n on, the last one first: in its bucket the frame with the
 * largest number comes first, so each one is at the head of its bucket when its turn comes. */
void machine_forget_frames(struct machine *m, uint32_t n) {
    assert(n > 0); /* frame 0, below everything, stays */
    while (m->n_frames > n) {
        const struct frame *f = &m->frame[--m->n_frames];
        uint32_t h = machine_bucket(m, f->parent, f->call, f->count);

        assert(m->bucket[h] == m->n_frames);
        m->bucket[h] = f->next;
    }
}

int machine_reserve(struct machine *m, uint32_t n) {
    if (m->n_configs + n <= m->cap_configs)
        return 0;
    uint32_t cap = MAX(m->cap_configs * 2, m->n_configs + n);

    if (!array_resize(&m->config, cap, sizeof(*m->config)))
        return m->error = -ENOMEM;
    m->cap_configs = cap;
    return 0;
}

static bool machine_equal(const struct config *c, const struct config *d) {
    return c->state == d->state && c->reg == d->reg && c->frame == d->frame && c->match == d->match;
}

/* Returns the slot of @c in the table, or its free slot. */
static uint16_t *machine_slot(struct machine *m, const struct config *c) {
    uint64_t h = ((uint64_t)c->state << 32 | c->reg) * 0x9E3779B97F4A7C15u;
    uint32_t i = (uint32_t)(((h ^ h >> 32 ^ c->frame) * 0xC2B2AE3D27D4EB4Fu + c->match) >> 40);

    while (m->seen.slot[i % SEEN_SLOTS] &&
           !machine_equal(&m->config[m->seen.begin + m->seen.slot[i % SEEN_SLOTS] - 1], c))
        i++;
    return &m->seen.slot[i % SEEN_SLOTS];
}

/* Returns whether @add is in the large set @out; *place is the slot to fill when it is added. */
static bool machine_is_seen(struct machine *m, const struct set *out, const struct config *add,
                            uint16_t **place) {
    uint32_t n = out->end - out->begin;

    /* Fills the table anew when this set becomes large, or when the table is of another set. */
    if (n == SEEN_FROM || m->seen.begin != out->begin || m->seen.n != n) {
        memset(m->seen.slot, 0, sizeof(m->seen.slot));
        m->seen.begin = out->begin;
        for (uint32_t i = 0; i < n; i++)
            *machine_slot(m, &m->config[out->begin + i]) = (uint16_t)(i + 1);
        m->seen.n = n;
    }
    *place = machine_slot(m, add);
    return **place;
}

static void add_config(struct machine *m, struct set *out, struct config add) {
    uint32_t n = out->end - out->begin;
    uint16_t *place = NULL;

    static_assert(SET_MAX < SEEN_SLOTS, "a table has free places");
    assert(out->end == m->n_configs); /* a set that grows is the last one */
    for (uint32_t i = out->begin; i < out->end && n < SEEN_FROM; i++) {
        if (machine_equal(&m->config[i], &add))
            return;
    }
    if (n >= SEEN_FROM && machine_is_seen(m, out, &add, &place))
        return;
    if (out->end - out->begin >= SET_MAX) {
        m->error = -E2BIG;
        return;
    }
    if (m->n_configs == m->cap_configs && machine_reserve(m, 1) < 0)
        return;
    m->config[m->n_configs++] = add;
    out->end = m->n_configs;
    if (place)
        *place = (uint16_t)(m->seen.n = n + 1);
}

/* Sets *@start to the configuration at the start of the rule that call @i of @from's state enters.
 * Returns false if the register or the limit of the stack forbids the call. */
static bool start_call(struct machine *m, const struct config *from, uint32_t i,
                       struct config *start) {
    const struct grammar *g = m->g;
    const struct call_desc *d = &g->desc[g->call[i].desc];
    uint32_t below = from->frame, to = g->call[i].to, inside = from->match, kept = 0;
    const struct register_kind *k = register_of(g, from->state, NULL);

    if (k && k->enter && !k->enter(m, from, d, &kept, &inside))
        return false;

    /* A plain call that comes last in its rule needs no frame: where the callee returns, the caller
     * would return at once, so the callee returns to the caller's caller. */
    if (d->kind != CALL_PLAIN || !(g->state[to].flags & STATE_RETURN)) {
        below = machine_push(m, from->frame, i, kept);
        if (below == 0)
            return false;
    }
    *start = (struct config){g->rule[d->rule].start, 0, below, inside};
    return true;
}

static void machine_enter(struct machine *m, struct set *out, uint32_t state, uint32_t reg,
                          uint32_t frame, uint32_t match);

/* Adds the starts of the rules that the first @n calls of @from's state call. */
static void enter_calls(struct machine *m, struct set *out, const struct config *from, uint32_t n) {
    const struct state *s = &m->g->state[from->state];
    struct config start;

    for (uint32_t i = s->call; i < s->call + n; i++)
        if (start_call(m, from, i, &start))
            machine_enter(m, out, start.state, start.reg, start.frame, start.match);
}

/* Adds a configuration and all that it leads to without reading: the starts of the rules that it
 * calls, and where its own rule returns to. This terminates: returns come first and lower the
 * stack, calls raise it, and no rule calls itself without reading. The last call of a state is a
 * round of the loop; the others are nested calls of machine_enter(), at most ENTER_DEPTH of them.
 */
static void machine_enter(struct machine *m, struct set *out, uint32_t state, uint32_t reg,
                          uint32_t frame, uint32_t match) {
    const struct grammar *g = m->g;
    struct config c = {state, reg, frame, match}, start;
    bool goes_on = true;

    if (m->depth == ENTER_DEPTH) {
        m->error = -E2BIG;
        return;
    }
    m->depth++;
    while (goes_on && machine_spend(m)) {
        const struct state *s = &g->state[c.state];
        bool may_leave = s->flags & STATE_ACCEPT;
        uint32_t n = s->n_calls;

        const struct register_kind *k = register_at(m, &c);

        if (s->n_edges && (!k || !k->is_open || k->is_open(m, c.state, c.reg)))
            add_config(m, out, c);
        goes_on = n > 0 && !may_leave;
        enter_calls(m, out, &c, goes_on ? n - 1 : n);
        goes_on = goes_on && start_call(m, &c, s->call + n - 1, &start);
        if (may_leave && (!k || !k->may_end || k->may_end(m, desc_of(m, c.frame), c.state, c.reg)))
            machine_return(m, out, c.reg, c.frame, c.match);
        if (goes_on)
            c = start;
    }
    m->depth--;
}

void machine_return(struct machine *m, struct set *out, uint32_t reg, uint32_t frame,
                    uint32_t match) {
    if (frame == 0) {
        out->can_end = true;
        return;
    }
    assert(frame < m->n_frames);
    struct frame f = m->frame[frame];
    const struct call *c = &m->g->call[f.call];
    const struct call_desc *d = &m->g->desc[c->desc];

    if (d->kind != CALL_REPEAT) {
        const struct register_kind *k = register_of(m->g, c->to, NULL);
        uint32_t reg = f.count;

        if (k && k->on_return && !k->on_return(m, d, c->to, frame, &reg, &match)) {
            m->n_pruned++;
            return;
        }
        machine_enter(m, out, c->to, reg, f.parent, match);
        return;
    }
    uint32_t n = f.count + 1;

    if (d->max == NO_MAX)
        n = MIN(n, d->min);
    if (n >= d->min)
        machine_enter(m, out, c->to, 0, f.parent, match);
    if (n < d->max) {
        uint32_t again = machine_push(m, f.parent, f.call, n);

        if (again)
            machine_enter(m, out, m->g->rule[d->rule].start, 0, again, match);
    }
}

void machine_start(struct machine *m, struct set *out) {
    assert(m->depth == 0);
    *out = set_open(m);
    machine_enter(m, out, m->g->rule[m->g->start].start, 0, 0, 0);
    out->can_end = out->can_end || m->g->nullable;
}

/* Adds to @out the configurations that @from becomes by the edge with @symbol, which leads to
 * @to. */
static void follow_edge(struct machine *m, const struct config *from, unsigned symbol, uint32_t to,
                        struct set *out) {
    struct config c = *from;
    const struct register_kind *k = register_at(m, &c);
    uint32_t reg = c.reg;

    if (k && k->step &&
        !k->step(m->g, desc_of(m, c.frame), &m->g->state[c.state], to, (uint8_t)symbol, &reg))
        return;
    uint32_t match = c.match ? distinct_step(m, c.frame, c.match, symbol) : 0;

    machine_enter(m, out, to, reg, c.frame, match);
}

static bool end_of_step(struct machine *m, struct set *out) {
    if (m->g->n_texts)
        distinct_prune(m, out);
    return out->end > out->begin || out->can_end;
}

bool machine_step(struct machine *m, const struct set *from, unsigned symbol, struct set *out) {
    const struct grammar *g = m->g;

    assert(from->end <= m->n_configs);
    *out = set_open(m);
    for (uint32_t i = from->begin; i < from->end; i++) {
        const struct config *c = &m->config[i];
        uint32_t to = state_next(g, &g->state[c->state], symbol);

        if (to != NO_STATE)
            follow_edge(m, c, symbol, to, out);
    }
    assert(m->depth == 0);
    return end_of_step(m, out);
}

void machine_call(struct machine *m, const struct set *from, uint32_t state, struct set *out) {
    *out = set_open(m);
    for (uint32_t i = from->begin; i < from->end; i++)
        enter_calls(m, out, &(struct config){.state = state, .frame = m->config[i].frame},
                    m->g->state[state].n_calls);
}

bool machine_follow(struct machine *m, const struct set *from, unsigned symbol, uint32_t to,
                    struct set *out) {
    *out = set_open(m);
    for (uint32_t i = from->begin; i < from->end; i++)
        follow_edge(m, &m->config[i], symbol, to, out);
    return end_of_step(m, out);
}

/* Returns whether the register of @state is a frame: a set of many members, or a list of items. */
static bool is_node(const struct grammar *g, uint32_t state) {
    const struct register_kind *k = register_of(g, state, NULL);

    return k && k->is_frame && k->is_frame(members_of(g, state));
}

static bool holds_node(const struct grammar *g, const struct frame *f) {
    return !(f->call & MEMBERS_NODE) && is_node(g, g->call[f->call].to);
}

uint64_t machine_stacks(const struct machine *m, const struct set *s) {
    uint64_t n = 0;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        n += m->frame[c->frame].depth;
        if (is_node(m->g, c->state))
            n += m->frame[c->reg].depth;
    }
    return n;
}

/* Marks and compacts. Parents have smaller numbers than their children: one pass from the last
 * frame marks, one from the first renumbers. The array of buckets, which is longer than that of the
 * frames and is rebuilt afterwards, holds the marks and then the new numbers. */
void machine_collect(struct machine *m) {
    uint32_t *number = m->bucket, n = 1;

    assert(m->n_frames <= m->n_buckets);
    memset(number, 0, m->n_frames * sizeof(*number));
    for (uint32_t i = 0; i < m->n_configs; i++) {
        assert(m->config[i].frame < m->n_frames);
        number[m->config[i].frame] = 1;
        if (is_node(m->g, m->config[i].state))
            number[m->config[i].reg] = 1;
    }
    for (uint32_t i = m->n_frames; i-- > 1;) {
        if (!number[i])
            continue;
        assert(m->frame[i].parent < i);
        number[m->frame[i].parent] = 1;
        if (holds_node(m->g, &m->frame[i]))
            number[m->frame[i].count] = 1;
    }
    number[0] = 0;
    for (uint32_t i = 1; i < m->n_frames; i++) {
        if (!number[i])
            continue;
        m->frame[n] = m->frame[i];
        m->frame[n].parent = number[m->frame[n].parent];
        if (holds_node(m->g, &m->frame[n]))
            m->frame[n].count = number[m->frame[n].count];
        number[i] = n++;
    }
    for (uint32_t i = 0; i < m->n_configs; i++) {
        m->config[i].frame = number[m->config[i].frame];
        if (is_node(m->g, m->config[i].state))
            m->config[i].reg = number[m->config[i].reg];
    }
    assert(n <= m->n_frames);
    m->n_frames = n;
    machine_rehash(m);
}
