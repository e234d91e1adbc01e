/* cutter - the search; cutter_parse.c makes the programs. */

#include "text/cutter.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/cutter_private.h"
#include "text/unicode.h"

#define PAUSE_STEPS 4096u

void cutter_begin(struct cutter_search *f, const struct cutter *c, const char *s, size_t len) {
    f->c = c;
    f->s = s;
    f->len = len;
    f->at = f->from = 0;
    f->pending = f->matched = false;
    f->base = f->top = 0;
    f->looked = false;
}

void cutter_deinit(struct cutter_search *f) {
    free(f->bits);
    free(f->looks);
    free(f->stack);
    *f = (struct cutter_search){0};
}

/* Makes room for rows up to position @at. Rows before @start, where the search began, are dropped:
 * no search goes back. Returns 0 or -ENOMEM. */
static int cutter_make_rows(struct cutter_search *f, size_t start, size_t at) {
    size_t row = f->c->n_words, used;

    if (at - f->base >= f->cap) {
        size_t gone = MIN(start, f->top) - f->base;

        used = f->top - f->base - gone;
        if (gone)
            memmove(f->bits, f->bits + gone * row, used * row * sizeof(*f->bits));
        f->base += gone;
        if (used == 0)
            f->base = f->top = start;
        size_t need = at - f->base + 1;
        if (need > f->cap / 2) {
            size_t cap = MAX(2 * need, 64u);

            if (!array_resize(&f->bits, cap, row * sizeof(*f->bits)))
                return -ENOMEM;
            f->cap = cap;
        }
    }
    memset(f->bits + (f->top - f->base) * row, 0, (at + 1 - f->top) * row * sizeof(*f->bits));
    f->top = at + 1;
    return 0;
}

/* Marks the pair of choice @bit and position @at. Returns 1; 0: it was marked before; -ENOMEM. */
static int cutter_visit(struct cutter_search *f, size_t start, size_t at, unsigned bit) {
    if (at >= f->top)
        TRY(cutter_make_rows(f, start, at));
    uint64_t *word = &f->bits[(at - f->base) * f->c->n_words + bit / 64];
    uint64_t mask = (uint64_t)1 << bit % 64;

    if (*word & mask)
        return 0;
    *word |= mask;
    return 1;
}

static int cutter_push(struct cutter_search *f, uint32_t pc, size_t at) {
    if (!ARRAY_GROW(f->stack, f->n_stack, f->stack_cap, 64))
        return -ENOMEM;
    f->stack[f->n_stack++] = (struct cutter_state){pc, at};
    return 0;
}

/* Returns true if the character at @at is in @set; *n: its bytes. */
static bool cutter_has_at(const struct cutter_search *f, const struct cutter_set *set, size_t at,
                          unsigned *n) {
    uint32_t cp;

    if (at >= f->len)
        return false;
    *n = unicode_decode(f->s + at, f->s + f->len, &cp);
    return cutter_set_has(set, cp);
}

size_t cutter_before(const struct cutter_search *f, size_t at) {
    size_t begin = at;
    uint32_t cp;

    do
        begin--;
    while (begin > 0 && at - begin < 4 && ((uint8_t)f->s[begin] & 0xC0) == 0x80);
    if (begin + unicode_decode(f->s + begin, f->s + f->len, &cp) == at)
        return begin;
    return at - 1; /* a byte that is not UTF-8 */
}

/* Returns true if the character before @at is in @set. */
static bool cutter_has_before(const struct cutter_search *f, const struct cutter_set *set,
                              size_t at) {
    unsigned n;

    return at > 0 && cutter_has_at(f, set, cutter_before(f, at), &n);
}

bool cutter_holds(const struct cutter_search *f, const struct cutter_inst *i, size_t at) {
    const struct cutter_set *set = f->c->set;
    unsigned n;
    bool before, behind;

    switch ((enum cutter_op)i->op) {
    case CUT_AHEAD:
        return cutter_has_at(f, &set[i->set], at, &n) != i->not ;
    case CUT_BEHIND:
        return cutter_has_before(f, &set[i->set], at) != i->not ;
    case CUT_LOOK:
        return (f->looks[at] >> i->set & 1) != i->not ;
    case CUT_BORDER:
        before = cutter_has_before(f, &set[i->set], at);
        behind = cutter_has_at(f, &set[i->set], at, &n);
        return (before != behind) != i->not ;
    case CUT_LINE_BEGIN:
        return at == 0 || (at < f->len && f->s[at - 1] == '\n');
    case CUT_LINE_END:
        return at == f->len || f->s[at] == '\n';
    case CUT_TEXT_BEGIN:
        return at == 0;
    default:
        return at == f->len;
    }
}

/* Runs the program from the state on top of the stack. Returns 1 with the end of a match; 0: this
 * state fails; -errno. */
static int cutter_run(struct cutter_search *f, size_t start, size_t *end) {
    struct cutter_state s = f->stack[--f->n_stack];
    const struct cutter *c = f->c;

    for (;;) {
        const struct cutter_inst *i = &c->inst[s.pc];
        unsigned n;

        if (++f->n_steps % PAUSE_STEPS == 0)
            TRY(job_pause());
        switch ((enum cutter_op)i->op) {
        case CUT_MATCH:
            *end = s.at;
            return 1;
        case CUT_CHAR:
            if (!cutter_has_at(f, &c->set[i->set], s.at, &n))
                return 0;
            s.at += n;
            s.pc++;
            break;
        case CUT_CHOICE: {
            int fresh = cutter_visit(f, start, s.at, i->set);

            if (fresh <= 0)
                return fresh;
            TRY(cutter_push(f, (uint32_t)((int32_t)s.pc + i->y), s.at));
            s.pc = (uint32_t)((int32_t)s.pc + i->x);
            break;
        }
        case CUT_LOOK:
            if (!cutter_holds(f, i, s.at))
                return 0;
            s.pc += (uint32_t)i->x;
            break;
        case CUT_JUMP:
            s.pc = (uint32_t)((int32_t)s.pc + i->x);
            break;
        default:
            if (!cutter_holds(f, i, s.at))
                return 0;
            s.pc++;
            break;
        }
    }
}

/* Finds the match that begins at @start. Returns 1 with its end, 0 or -errno. */
static int cutter_match(struct cutter_search *f, size_t start, size_t *end) {
    int found = 0;

    f->n_stack = 0;
    TRY(cutter_push(f, 0, start));
    while (f->n_stack && found == 0)
        found = cutter_run(f, start, end);
    if (found <= 0)
        return found;
    /* pairs at the end of a match have led to it, all behind it have failed */
    if (*end < f->top && *end >= f->base)
        memset(f->bits + (*end - f->base) * f->c->n_words, 0, f->c->n_words * sizeof(*f->bits));
    return 1;
}

/* Finds the next match from f->from on; an empty one counts unless the match before it ends there.
 * Returns 1, 0 or -errno. */
static int cutter_find(struct cutter_search *f) {
    while (f->from <= f->len) {
        size_t start = f->from, end = f->from;
        uint32_t cp;
        int found = cutter_match(f, start, &end);

        if (found < 0)
            return found;
        bool again = f->matched && end == start && f->end == start;
        if (found && !again) {
            f->begin = start;
            f->end = f->from = end;
            f->matched = f->pending = true;
            return 1;
        }
        if (start == f->len)
            break;
        f->from += unicode_decode(f->s + start, f->s + f->len, &cp);
    }
    f->from = f->len + 1;
    return 0;
}

int cutter_next(struct cutter_search *f, size_t *n, bool *match) {
    if (f->c->n_looks && !f->looked)
        TRY(cutter_look(f));
    while (f->at < f->len) {
        if (!f->pending) {
            int found = cutter_find(f);

            if (found < 0)
                return found;
            if (found == 0) {
                f->begin = f->end = f->len;
                f->pending = true;
            }
        }
        *match = f->at == f->begin;
        size_t stop = *match ? f->end : f->begin;
        f->pending = !*match;
        if (stop == f->at) /* an empty match */
            continue;
        *n = stop - f->at;
        f->at = stop;
        return 1;
    }
    return 0;
}
