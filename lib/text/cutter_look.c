/*
 * cutter_look - look-ahead of several characters. Whether one matches depends on nothing but its
 * position, so all are answered for all positions before the first search, from the end of the text
 * to its begin: an instruction leads to a match at a position if one of its successors does, there
 * or behind the character that it takes. This takes time in proportion to the length of the text
 * and to the size of these look-aheads, as a search does.
 */

#include <errno.h>
#include <string.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/cutter_private.h"
#include "text/unicode.h"

#define PAUSE_CHARS 1024u

/* Instructions that lead to a match. */
struct look_pass {
    struct cutter_search *f;
    /* [c->n] at this position, and behind its character */
    uint8_t *here, *behind;
    /* those of `here` whose predecessors were not visited yet */
    uint32_t *work;
    uint32_t n_work;
};

/* Writes the instructions that may follow @pc at the same position to @to. Returns their number. */
static unsigned look_successors(const struct cutter *c, uint32_t pc, uint32_t to[2]) {
    const struct cutter_inst *i = &c->inst[pc];

    switch ((enum cutter_op)i->op) {
    case CUT_CHAR:
    case CUT_MATCH:
        return 0;
    case CUT_CHOICE:
        to[0] = (uint32_t)((int32_t)pc + i->x);
        to[1] = (uint32_t)((int32_t)pc + i->y);
        return 2;
    case CUT_JUMP:
    case CUT_LOOK:
        to[0] = (uint32_t)((int32_t)pc + i->x);
        return 1;
    default:
        to[0] = pc + 1;
        return 1;
    }
}

int cutter_look_prepare(struct cutter *c) {
    uint32_t to[2], n = 0;

    if (c->n_looks == 0)
        return 0;
    c->before_at = calloc(c->n + 2, sizeof(*c->before_at));
    c->before = malloc(2 * c->n * sizeof(*c->before));
    if (!c->before_at || !c->before)
        return -ENOMEM;
    /* before_at[k + 1] counts, then is the place of the next entry of k, and so its end */
    for (uint32_t pc = 0; pc < c->n; pc++)
        for (unsigned k = look_successors(c, pc, to); k-- > 0;)
            c->before_at[to[k] + 2]++;
    for (uint32_t k = 2; k < c->n + 2; k++)
        c->before_at[k] += c->before_at[k - 1];
    for (uint32_t pc = 0; pc < c->n; pc++)
        for (unsigned k = look_successors(c, pc, to); k-- > 0; n++)
            c->before[c->before_at[to[k] + 1]++] = (uint16_t)pc;
    return 0;
}

static void look_mark(struct look_pass *p, uint32_t pc) {
    if (p->here[pc])
        return;
    p->here[pc] = 1;
    p->work[p->n_work++] = pc;
}

/* Marks what leads to the marked instructions at position @at. */
static void look_spread(struct look_pass *p, size_t at) {
    const struct cutter *c = p->f->c;

    while (p->n_work) {
        uint32_t pc = p->work[--p->n_work];

        for (uint32_t k = c->before_at[pc]; k < c->before_at[pc + 1]; k++) {
            const struct cutter_inst *i = &c->inst[c->before[k]];
            bool goes_on = i->op == CUT_CHOICE || i->op == CUT_JUMP;

            if (goes_on || cutter_holds(p->f, i, at))
                look_mark(p, c->before[k]);
        }
    }
}

/* Answers all look-aheads for position @at, whose character is @cp unless @last. Those inside
 * others have higher numbers. */
static void look_answer(struct look_pass *p, size_t at, uint32_t cp, bool last) {
    const struct cutter *c = p->f->c;

    memset(p->here, 0, c->n);
    p->f->looks[at] = 0;
    for (uint32_t l = c->n_looks; l-- > 0;) {
        for (uint32_t pc = c->look[l].begin; pc < c->look[l].end; pc++) {
            const struct cutter_inst *i = &c->inst[pc];
            bool takes = i->op == CUT_CHAR && !last && p->behind[pc + 1];

            if (i->op == CUT_MATCH || (takes && cutter_set_has(&c->set[i->set], cp)))
                look_mark(p, pc);
        }
        look_spread(p, at);
        if (p->here[c->look[l].begin])
            p->f->looks[at] |= (uint8_t)(1u << l);
    }
}

/* Answers for all positions, from the last on. */
static int look_run(struct look_pass *p) {
    struct cutter_search *f = p->f;
    uint32_t cp = 0, n = 0;

    look_answer(p, f->len, 0, true);
    for (size_t at = f->len; at > 0;) {
        uint8_t *behind = p->here;

        if (++n % PAUSE_CHARS == 0)
            TRY(job_pause());
        at = cutter_before(f, at);
        unicode_decode(f->s + at, f->s + f->len, &cp);
        p->here = p->behind;
        p->behind = behind;
        look_answer(p, at, cp, false);
    }
    return 0;
}

int cutter_look(struct cutter_search *f) {
    CLEANUP(freep) uint8_t *marks = calloc(f->c->n, 2);
    CLEANUP(freep) uint32_t *work = malloc(f->c->n * sizeof(*work));
    struct look_pass p = {.f = f, .here = marks, .work = work};

    if (!marks || !work)
        return -ENOMEM;
    p.behind = marks + f->c->n;
    if (f->len + 1 > f->looks_cap) {
        if (!array_resize(&f->looks, f->len + 1, 1))
            return -ENOMEM;
        f->looks_cap = f->len + 1;
    }
    TRY(look_run(&p));
    f->looked = true;
    return 0;
}
