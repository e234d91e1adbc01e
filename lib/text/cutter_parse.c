/*
 * cutter_parse - compiles an expression to a program by recursive descent. A part becomes a block
 * of instructions, whose places are relative to each other: a quantifier moves and copies the
 * block of its operand.
 */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "text/categories.h"
#include "text/cutter_private.h"
#include "text/pretok.h"
#include "text/unicode.h"

#define DEPTH_MAX 32u
#define REPEAT_MAX 256u
#define REPEAT_NONE UINT32_MAX

/* State of reading. fold: letters of both cases match. */
struct cutter_parse {
    struct cutter *c;
    const char *begin, *s, *end;
    bool fold;
    unsigned depth;
    struct err *err;
};

static int cutter_fail(const struct cutter_parse *p, const char *what) {
    return err_set(p->err, 0, NULL, "%s at byte %zu", what, (size_t)(p->s - p->begin));
}

static bool cutter_next_is(const struct cutter_parse *p, const char *text) {
    size_t n = strlen(text);

    return (size_t)(p->end - p->s) >= n && memcmp(p->s, text, n) == 0;
}

/* Skips @text if it is next. */
static bool cutter_accept(struct cutter_parse *p, const char *text) {
    if (!cutter_next_is(p, text))
        return false;
    p->s += strlen(text);
    return true;
}

/* ---- program ---- */

/* Makes room for an instruction at @at, before those that follow. */
static int cutter_insert(struct cutter_parse *p, uint32_t at, struct cutter_inst inst) {
    struct cutter *c = p->c;

    if (c->n == CUTTER_INSTS_MAX)
        return cutter_fail(p, "the expression is too large");
    if (!ARRAY_GROW(c->inst, c->n, c->cap, 32))
        return -ENOMEM;
    memmove(c->inst + at + 1, c->inst + at, (c->n - at) * sizeof(*c->inst));
    c->inst[at] = inst;
    c->n++;
    return 0;
}

static int cutter_emit(struct cutter_parse *p, struct cutter_inst inst) {
    return cutter_insert(p, p->c->n, inst);
}

/* Emits a copy of the @n instructions at @from. */
static int cutter_copy(struct cutter_parse *p, uint32_t from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        TRY(cutter_emit(p, p->c->inst[from + i]));
    return 0;
}

/* Adds the set of @ranges, which it empties, unless there is an equal one. *out: its number. */
static int cutter_add_set(struct cutter_parse *p, struct cutter_ranges *ranges, uint16_t *out) {
    struct cutter *c = p->c;
    struct cutter_set set = {.ranges = *ranges};

    cutter_ranges_sort(&set.ranges);
    for (uint32_t i = 0; i < c->n_sets; i++) {
        const struct cutter_ranges *other = &c->set[i].ranges;
        size_t bytes = other->n * sizeof(*other->range);

        if (other->n == set.ranges.n &&
            (bytes == 0 || memcmp(other->range, set.ranges.range, bytes) == 0)) {
            *out = (uint16_t)i;
            return 0;
        }
    }
    if (c->n_sets == CUTTER_SETS_MAX)
        return cutter_fail(p, "the expression has too many classes");
    if (!ARRAY_GROW(c->set, c->n_sets, c->sets_cap, 8))
        return -ENOMEM;
    for (uint32_t i = 0; i < set.ranges.n; i++)
        for (uint32_t cp = set.ranges.range[i].lo; cp <= set.ranges.range[i].hi && cp < 128; cp++)
            set.ascii[cp / 64] |= (uint64_t)1 << cp % 64;
    *ranges = (struct cutter_ranges){0};
    c->set[c->n_sets] = set;
    *out = (uint16_t)c->n_sets++;
    return 0;
}

/* Emits an instruction with the set of @ranges. */
static int cutter_emit_set(struct cutter_parse *p, enum cutter_op op,
                           struct cutter_ranges *ranges) {
    struct cutter_inst inst = {.op = op};

    TRY(cutter_add_set(p, ranges, &inst.set));
    return cutter_emit(p, inst);
}

/* ---- characters and classes ---- */

/* Adds the characters of category @name. */
static int ranges_add_named(struct cutter_ranges *r, const char *name) {
    return cutter_ranges_add_categories(r, unicode_property(name, strlen(name)));
}

static int ranges_add_space(struct cutter_ranges *r) {
    TRY(cutter_ranges_add(r, 9, 13));
    TRY(cutter_ranges_add(r, 0x85, 0x85));
    return ranges_add_named(r, "Z");
}

/* Adds the characters of words. Beside the categories these are the letters in circles. */
static int ranges_add_word(struct cutter_ranges *r) {
    static const uint32_t circled[][2] = {
        {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
    static const char *const names[] = {"L", "M", "Nd", "Nl", "Pc"};

    for (size_t i = 0; i < ARRAY_SIZE(circled); i++)
        TRY(cutter_ranges_add(r, circled[i][0], circled[i][1]));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        TRY(ranges_add_named(r, names[i]));
    return 0;
}

static int ranges_add_han(struct cutter_ranges *r) {
    size_t n;
    const uint32_t(*han)[2] = pretok_han(&n);

    for (size_t i = 0; i < n; i++)
        TRY(cutter_ranges_add(r, han[i][0], han[i][1]));
    return 0;
}

/* Reads {name} behind \p or \P. */
static int cutter_read_property(struct cutter_parse *p, bool not, struct cutter_ranges *out) {
    CLEANUP(cutter_ranges_deinit) struct cutter_ranges own = {0};

    if (p->fold)
        return cutter_fail(p, "a property in a case-insensitive group is not supported");
    if (!cutter_accept(p, "{"))
        return cutter_fail(p, "a property without {name}");
    if (cutter_accept(p, "^"))
        not = !not ;
    const char *name = p->s, *close = memchr(name, '}', (size_t)(p->end - name));
    if (!close)
        return cutter_fail(p, "a property without }");
    size_t n = (size_t)(close - name);
    uint32_t mask = unicode_property(name, n);
    if (mask)
        TRY(cutter_ranges_add_categories(&own, mask));
    else if ((n == 3 && memcmp(name, "Han", n) == 0) ||
             (n == 10 && memcmp(name, "Script=Han", n) == 0))
        TRY(ranges_add_han(&own));
    else
        return cutter_fail(p, "an unknown property");
    p->s = close + 1;
    if (not )
        TRY(cutter_ranges_invert(&own));
    return cutter_ranges_join(out, &own);
}

/* Reads @least to @most hexadecimal digits. */
static int cutter_read_hex(struct cutter_parse *p, unsigned least, unsigned most, uint32_t *cp) {
    unsigned n = 0;

    for (*cp = 0; n < most && p->s < p->end && hex_digit(*p->s) >= 0; n++)
        *cp = *cp * 16 + (uint32_t)hex_digit(*p->s++);
    if (n < least || *cp > 0x10FFFF)
        return cutter_fail(p, "a wrong number of a character");
    return 0;
}

/* Reads the number of a character behind \x or \u. */
static int cutter_read_number(struct cutter_parse *p, char kind, uint32_t *cp) {
    if (kind == 'u')
        return cutter_read_hex(p, 4, 4, cp);
    if (!cutter_accept(p, "{"))
        return cutter_read_hex(p, 2, 2, cp);
    TRY(cutter_read_hex(p, 1, 6, cp));
    if (!cutter_accept(p, "}"))
        return cutter_fail(p, "a number without }");
    return 0;
}

/* Adds the class of the letter behind a backslash: s, d, w, or its complement by a capital. Returns
 * 1; 0: it is none. */
static int cutter_add_shorthand(char letter, struct cutter_ranges *out) {
    CLEANUP(cutter_ranges_deinit) struct cutter_ranges own = {0};

    switch (letter | 0x20) {
    case 's':
        TRY(ranges_add_space(&own));
        break;
    case 'd':
        TRY(ranges_add_named(&own, "Nd"));
        break;
    case 'w':
        TRY(ranges_add_word(&own));
        break;
    default:
        return 0;
    }
    if (letter < 'a')
        TRY(cutter_ranges_invert(&own));
    TRY(cutter_ranges_join(out, &own));
    return 1;
}

/* Reads what follows a backslash: a class, which is added to @out, or one character. Returns 1 for
 * a class, 0 with the character *@cp, or -errno. */
static int cutter_read_escape(struct cutter_parse *p, struct cutter_ranges *out, uint32_t *cp) {
    static const char letters[] = "rntfvae", values[] = "\r\n\t\f\v\a\x1B";

    if (p->s == p->end)
        return cutter_fail(p, "a backslash at the end");
    char c = *p->s++;
    const char *known = strchr(letters, c);

    if (c == 'p' || c == 'P') {
        TRY(cutter_read_property(p, c == 'P', out));
        return 1;
    }
    if (c == 'x' || c == 'u')
        return cutter_read_number(p, c, cp);
    if (c && known) {
        *cp = (uint8_t)values[known - letters];
        return 0;
    }
    int shorthand = cutter_add_shorthand(c, out);
    if (shorthand)
        return shorthand;
    bool letter = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (letter || (uint8_t)c >= 0x80 || !c)
        return cutter_fail(p, "an escape that is not supported");
    *cp = (uint8_t)c;
    return 0;
}

static int cutter_read_char(struct cutter_parse *p, uint32_t *cp) {
    unsigned n = unicode_decode(p->s, p->end, cp);

    if (*cp == UNICODE_INVALID)
        return cutter_fail(p, "a byte that is not UTF-8");
    p->s += n;
    return 0;
}

/* Refuses letters beyond ASCII in case-insensitive groups. */
static int cutter_check_fold(const struct cutter_parse *p, uint32_t lo, uint32_t hi) {
    if (!p->fold || hi < 128)
        return 0;
    for (uint32_t cp = MAX(lo, 128u); cp <= MIN(hi, lo + 1000); cp++)
        if (unicode_wide_class(cp) & (UC_UPPER | UC_LOWER))
            return cutter_fail(p, "a case-insensitive letter beyond ASCII is not supported");
    if (hi - lo > 1000)
        return cutter_fail(p, "a large case-insensitive class is not supported");
    return 0;
}

/* Reads one item of a class, which is no class itself: a character or a range of them. */
static int cutter_read_item(struct cutter_parse *p, struct cutter_ranges *out) {
    uint32_t lo, hi;
    int class = 0;

    if (cutter_accept(p, "\\"))
        class = cutter_read_escape(p, out, &lo);
    else
        class = cutter_read_char(p, &lo);
    if (class != 0)
        return MIN(class, 0);
    hi = lo;
    if (cutter_next_is(p, "-") && p->end - p->s > 1 && p->s[1] != ']') {
        p->s++;
        if (cutter_next_is(p, "["))
            return cutter_fail(p, "a range that ends in a class is not supported");
        if (cutter_accept(p, "\\"))
            class = cutter_read_escape(p, out, &hi);
        else
            class = cutter_read_char(p, &hi);
        TRY(class);
        if (class > 0 || hi < lo)
            return cutter_fail(p, "a range without an end");
    }
    TRY(cutter_check_fold(p, lo, hi));
    return cutter_ranges_add(out, lo, hi);
}

/* Makes @all the characters that are in it and in @other. */
static int ranges_intersect(struct cutter_ranges *all, struct cutter_ranges *other) {
    TRY(cutter_ranges_invert(all));
    TRY(cutter_ranges_invert(other));
    TRY(cutter_ranges_join(all, other));
    return cutter_ranges_invert(all);
}

/* Makes @all what it has in common with @part, which it empties; the first part is @all itself. */
static int cutter_close_part(const struct cutter_parse *p, struct cutter_ranges *all,
                             struct cutter_ranges *part, bool several) {
    if (p->fold)
        TRY(cutter_ranges_fold(part));
    if (several)
        TRY(ranges_intersect(all, part));
    else
        TRY(cutter_ranges_join(all, part));
    cutter_ranges_deinit(part);
    return 0;
}

/* Reads a class behind its [. */
static int cutter_read_class(struct cutter_parse *p, struct cutter_ranges *out) {
    CLEANUP(cutter_ranges_deinit) struct cutter_ranges all = {0};
    CLEANUP(cutter_ranges_deinit) struct cutter_ranges part = {0};
    bool not = cutter_accept(p, "^"), first = true, several = false;

    if (++p->depth > DEPTH_MAX)
        return cutter_fail(p, "too many levels");
    for (; first || !cutter_next_is(p, "]"); first = false) {
        if (p->s == p->end || (first && *p->s == ']'))
            return cutter_fail(p, "a class that is empty or has no end");
        if (cutter_next_is(p, "[:"))
            return cutter_fail(p, "a POSIX bracket is not supported");
        if (cutter_accept(p, "&&")) {
            TRY(cutter_close_part(p, &all, &part, several));
            several = true;
        } else if (cutter_accept(p, "[")) {
            TRY(cutter_read_class(p, &part));
        } else {
            TRY(cutter_read_item(p, &part));
        }
    }
    p->s++;
    p->depth--;
    TRY(cutter_close_part(p, &all, &part, several));
    if (not )
        TRY(cutter_ranges_invert(&all));
    return cutter_ranges_join(out, &all);
}

/* ---- groups ---- */

static int cutter_read_alternatives(struct cutter_parse *p);

/* Reads look-around behind its sign; look-behind is of one character. */
static int cutter_read_look(struct cutter_parse *p, enum cutter_op op, bool not ) {
    struct cutter_inst look = {.op = CUT_LOOK, .not = not };
    uint32_t from = p->c->n;

    TRY(cutter_read_alternatives(p));
    if (p->c->n == from + 1 && p->c->inst[from].op == CUT_CHAR) {
        p->c->inst[from].op = op;
        p->c->inst[from].not = not ;
        return 0;
    }
    if (op == CUT_BEHIND)
        return cutter_fail(p, "look-behind of something else than one character is not supported");
    TRY(cutter_emit(p, (struct cutter_inst){.op = CUT_MATCH}));
    look.x = (int32_t)(p->c->n - from) + 1;
    return cutter_insert(p, from, look);
}

/* Reads the inside of a group, by what stands behind its parenthesis. */
static int cutter_read_inside(struct cutter_parse *p) {
    if (cutter_accept(p, "?:"))
        return cutter_read_alternatives(p);
    if (cutter_accept(p, "?i:")) {
        p->fold = true;
        return cutter_read_alternatives(p);
    }
    if (cutter_accept(p, "?-i:")) {
        p->fold = false;
        return cutter_read_alternatives(p);
    }
    if (cutter_accept(p, "?="))
        return cutter_read_look(p, CUT_AHEAD, false);
    if (cutter_accept(p, "?!"))
        return cutter_read_look(p, CUT_AHEAD, true);
    if (cutter_accept(p, "?<="))
        return cutter_read_look(p, CUT_BEHIND, false);
    if (cutter_accept(p, "?<!"))
        return cutter_read_look(p, CUT_BEHIND, true);
    if (cutter_next_is(p, "?"))
        return cutter_fail(p, "a group of an unknown kind");
    return cutter_read_alternatives(p);
}

static int cutter_read_group(struct cutter_parse *p) {
    bool fold = p->fold;

    if (++p->depth > DEPTH_MAX)
        return cutter_fail(p, "too many levels");
    TRY(cutter_read_inside(p));
    if (!cutter_accept(p, ")"))
        return cutter_fail(p, "a group without )");
    p->depth--;
    p->fold = fold;
    return 0;
}

/* Reads a condition on a place behind a backslash. Returns 1; 0: it is none. */
static int cutter_read_place(struct cutter_parse *p) {
    CLEANUP(cutter_ranges_deinit) struct cutter_ranges word = {0};

    if (cutter_accept(p, "\\A"))
        TRY(cutter_emit(p, (struct cutter_inst){.op = CUT_TEXT_BEGIN}));
    else if (cutter_accept(p, "\\z"))
        TRY(cutter_emit(p, (struct cutter_inst){.op = CUT_TEXT_END}));
    else if (cutter_next_is(p, "\\b") || cutter_next_is(p, "\\B")) {
        TRY(ranges_add_word(&word));
        TRY(cutter_emit_set(p, CUT_BORDER, &word));
        p->c->inst[p->c->n - 1].not = p->s[1] == 'B';
        p->s += 2;
    } else {
        return 0;
    }
    return 1;
}

/* Reads a character or a class, and emits its set. */
static int cutter_read_set(struct cutter_parse *p) {
    CLEANUP(cutter_ranges_deinit) struct cutter_ranges set = {0};
    uint32_t cp;
    int class = 1;

    if (cutter_accept(p, "[")) {
        TRY(cutter_read_class(p, &set));
    } else if (cutter_accept(p, ".")) {
        TRY(cutter_ranges_add(&set, '\n', '\n'));
        TRY(cutter_ranges_invert(&set));
    } else if (cutter_accept(p, "\\")) {
        class = cutter_read_escape(p, &set, &cp);
    } else {
        class = cutter_read_char(p, &cp);
    }
    TRY(class);
    if (class == 0) {
        TRY(cutter_check_fold(p, cp, cp));
        TRY(cutter_ranges_add(&set, cp, cp));
        if (p->fold)
            TRY(cutter_ranges_fold(&set));
    }
    return cutter_emit_set(p, CUT_CHAR, &set);
}

static int cutter_read_atom(struct cutter_parse *p) {
    if (cutter_accept(p, "("))
        return cutter_read_group(p);
    if (cutter_accept(p, "^"))
        return cutter_emit(p, (struct cutter_inst){.op = CUT_LINE_BEGIN});
    if (cutter_accept(p, "$"))
        return cutter_emit(p, (struct cutter_inst){.op = CUT_LINE_END});
    if (strchr("*+?{", *p->s) && *p->s)
        return cutter_fail(p, "a quantifier of nothing");
    int place = cutter_read_place(p);
    if (place)
        return MIN(place, 0);
    return cutter_read_set(p);
}

/* ---- quantifiers ---- */

/* Bounds of a quantifier, and its kind. */
struct cutter_repeat {
    uint32_t least, most;
    bool lazy, possessive;
};

/* Returns a choice between the next instruction and the one at @y, or with @lazy the reverse. */
static struct cutter_inst cutter_choice(int32_t x, int32_t y, bool lazy) {
    if (lazy)
        return (struct cutter_inst){.op = CUT_CHOICE, .x = y, .y = x};
    return (struct cutter_inst){.op = CUT_CHOICE, .x = x, .y = y};
}

/* Emits the block of @n instructions at @from, which is the last, as often as @t says. */
static int cutter_emit_repeat(struct cutter_parse *p, uint32_t from, uint32_t n,
                              const struct cutter_repeat *t) {
    int32_t size = (int32_t)n;
    uint32_t optional = t->most == REPEAT_NONE ? 0 : t->most - t->least;

    if (t->least == 0 && t->most == REPEAT_NONE) {
        TRY(cutter_insert(p, from, cutter_choice(1, size + 2, t->lazy)));
        return cutter_emit(p, (struct cutter_inst){.op = CUT_JUMP, .x = -(size + 1)});
    }
    for (uint32_t i = 1; i < t->least; i++)
        TRY(cutter_copy(p, from, n));
    if (t->most == REPEAT_NONE)
        return cutter_emit(p, cutter_choice(-size, 1, t->lazy));
    /* without a first block the last one is the first that is optional */
    for (uint32_t i = 0; i < optional; i++) {
        int32_t rest = (int32_t)(optional - i) * (size + 1);

        if (i == 0 && t->least == 0) {
            TRY(cutter_insert(p, from, cutter_choice(1, rest, t->lazy)));
            continue;
        }
        TRY(cutter_emit(p, cutter_choice(1, rest, t->lazy)));
        TRY(cutter_copy(p, t->least == 0 ? from + 1 : from, n));
    }
    if (t->most == 0)
        p->c->n = from;
    return 0;
}

/* Emits the one character at @from possessively: behind the last none of the set may follow. */
static int cutter_emit_possessive(struct cutter_parse *p, uint32_t from,
                                  const struct cutter_repeat *t) {
    struct cutter_inst none = {.op = CUT_AHEAD, .not = true};

    /* the block of () has no instruction */
    if (p->c->n != from + 1 || p->c->inst[from].op != CUT_CHAR)
        return cutter_fail(p, "a possessive quantifier of something else than one character is not "
                              "supported");
    none.set = p->c->inst[from].set;
    if (t->most == REPEAT_NONE) {
        TRY(cutter_emit_repeat(p, from, 1, t));
        return cutter_emit(p, none);
    }
    TRY(cutter_insert(p, from, cutter_choice(1, 3, false)));
    TRY(cutter_emit(p, (struct cutter_inst){.op = CUT_JUMP, .x = 2}));
    return cutter_emit(p, none);
}

/* Reads a number of times; REPEAT_NONE: there is none. */
static int cutter_read_times(struct cutter_parse *p, uint32_t *out) {
    uint32_t v = 0;
    const char *from = p->s;

    while (p->s < p->end && *p->s >= '0' && *p->s <= '9' && v <= REPEAT_MAX)
        v = 10 * v + (uint32_t)(*p->s++ - '0');
    if (v > REPEAT_MAX)
        return cutter_fail(p, "a quantifier of more than 256 times is not supported");
    *out = p->s == from ? REPEAT_NONE : v;
    return 0;
}

/* Reads {n}, {n,}, {,m} or {n,m} behind its {. */
static int cutter_read_braces(struct cutter_parse *p, struct cutter_repeat *t) {
    TRY(cutter_read_times(p, &t->least));
    t->most = t->least;
    bool comma = cutter_accept(p, ",");

    if (comma)
        TRY(cutter_read_times(p, &t->most));
    if (!cutter_accept(p, "}") || (t->least == REPEAT_NONE && t->most == REPEAT_NONE))
        return cutter_fail(p, "a quantifier in braces without its numbers");
    if (t->least == REPEAT_NONE)
        t->least = 0;
    if (t->most < t->least)
        return cutter_fail(p, "a quantifier whose numbers fall is not supported");
    if (cutter_next_is(p, "?") && !comma)
        return cutter_fail(p, "a question mark behind {n} is not supported");
    return 0;
}

/* Reads a quantifier. Returns 1; 0: there is none. */
static int cutter_read_quantifier(struct cutter_parse *p, struct cutter_repeat *t) {
    bool braces = false;

    *t = (struct cutter_repeat){.least = 0, .most = REPEAT_NONE};
    if (cutter_accept(p, "+")) {
        t->least = 1;
    } else if (cutter_accept(p, "?")) {
        t->most = 1;
    } else if (cutter_accept(p, "{")) {
        braces = true;
        TRY(cutter_read_braces(p, t));
    } else if (!cutter_accept(p, "*")) {
        return 0;
    }
    t->lazy = cutter_accept(p, "?");
    /* behind braces, and behind a lazy quantifier, + is one of its own in Ruby's syntax */
    t->possessive = !braces && !t->lazy && cutter_accept(p, "+");
    return 1;
}

static int cutter_read_term(struct cutter_parse *p) {
    uint32_t from = p->c->n;
    struct cutter_repeat t;

    TRY(cutter_read_atom(p));
    for (;;) {
        int found = cutter_read_quantifier(p, &t);

        if (found <= 0)
            return found;
        if (t.possessive)
            TRY(cutter_emit_possessive(p, from, &t));
        else
            TRY(cutter_emit_repeat(p, from, p->c->n - from, &t));
    }
}

/* Reads alternatives up to the end of the group. Each but the last ends in a jump behind all, whose
 * x is the number of the jump before it until the end is known. */
static int cutter_read_alternatives(struct cutter_parse *p) {
    uint32_t jump = UINT32_MAX;

    for (;;) {
        uint32_t from = p->c->n;

        while (p->s < p->end && *p->s != '|' && *p->s != ')')
            TRY(cutter_read_term(p));
        if (!cutter_accept(p, "|"))
            break;
        TRY(cutter_insert(p, from, cutter_choice(1, (int32_t)(p->c->n - from) + 2, false)));
        TRY(cutter_emit(p, (struct cutter_inst){.op = CUT_JUMP, .x = (int32_t)jump}));
        jump = p->c->n - 1;
    }
    while (jump != UINT32_MAX) {
        struct cutter_inst *i = &p->c->inst[jump];
        uint32_t before = (uint32_t)i->x;

        i->x = (int32_t)(p->c->n - jump);
        jump = before;
    }
    return 0;
}

/* Numbers the choices, whose bits a row has, and look-aheads of several characters, whose choices
 * no search visits. */
static int cutter_number(struct cutter_parse *p) {
    struct cutter *c = p->c;
    uint32_t looks_end = 0;
    uint16_t n = 0;

    for (uint32_t k = 0; k < c->n; k++) {
        struct cutter_inst *i = &c->inst[k];

        if (i->op == CUT_CHOICE && k >= looks_end)
            i->set = n++;
        if (i->op != CUT_LOOK)
            continue;
        if (c->n_looks == CUTTER_LOOKS_MAX)
            return cutter_fail(p, "more than 8 look-aheads of several characters");
        c->look[c->n_looks].begin = k + 1;
        c->look[c->n_looks].end = k + (uint32_t)i->x;
        looks_end = MAX(looks_end, c->look[c->n_looks].end);
        i->set = (uint16_t)c->n_looks++;
    }
    c->n_words = n / 64u + 1;
    return 0;
}

int cutter_new(struct cutter **out, struct gguf_str text, struct err *err) {
    CLEANUP(cutter_freep) struct cutter *c = calloc(1, sizeof(*c));
    struct cutter_parse p = {.c = c, .begin = text.data, .s = text.data, .err = err};

    if (!c)
        return -ENOMEM;
    if (text.len == 0 || text.len > CUTTER_TEXT_MAX)
        return err_set(err, 0, NULL, "an expression of %zu bytes; there must be 1 to %u", text.len,
                       CUTTER_TEXT_MAX);
    p.end = text.data + text.len;
    p.fold = cutter_accept(&p, "(?i)");
    TRY(cutter_read_alternatives(&p));
    if (p.s < p.end)
        return cutter_fail(&p, "a ) without a group");
    TRY(cutter_emit(&p, (struct cutter_inst){.op = CUT_MATCH}));
    TRY(cutter_number(&p));
    TRY(cutter_look_prepare(c));
    *out = STEAL(c);
    return 0;
}

struct cutter *cutter_free(struct cutter *c) {
    if (!c)
        return NULL;
    for (uint32_t i = 0; i < c->n_sets; i++)
        cutter_ranges_deinit(&c->set[i].ranges);
    free(c->set);
    free(c->before_at);
    free(c->before);
    free(c->inst);
    free(c);
    return NULL;
}
