/*
 * eval - runs statements. Scopes follow the language: loops, macros, set blocks and filter blocks
 * open one, `if` does not. An assignment binds in the innermost scope, and every turn of a loop
 * begins with an empty one.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "text/template/render.h"

static uint64_t scope_bit(uint32_t sym) {
    return 1ull << sym % 64;
}

/* Finds a name in one scope. Scopes are so small that a search from the front is the fastest. */
struct binding *scope_find(const struct scope *s, uint32_t sym) {
    if (!(s->mask & scope_bit(sym)))
        return NULL;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->b[i].sym == sym)
            return &s->b[i];
    }
    return NULL;
}

struct scope *scope_new(struct render *rd, struct scope *up) {
    struct scope *s = rd->free_scopes;

    if (s)
        rd->free_scopes = s->up;
    else
        s = render_alloc(rd, 1, sizeof(*s));
    if (s)
        s->up = up;
    return s;
}

void scope_end(struct render *rd, struct scope *s) {
    if (!s || s->kept)
        return;
    s->n = 0;
    s->mask = 0;
    s->up = rd->free_scopes;
    rd->free_scopes = s;
}

/* Keeps @s and the scopes around it: a macro or a recursive loop sees them later. */
static void scope_retain(struct scope *s) {
    for (; s && !s->kept; s = s->up)
        s->kept = true;
}

/* Rebinds @sym in @s itself, never in a scope around it. */
int scope_set(struct render *rd, struct scope *s, uint32_t sym, struct value v) {
    struct binding *b = scope_find(s, sym);

    assert(s->n <= s->cap);

    TRY(render_charge(rd, s->n / 16));
    if (b) {
        b->v = v;
        return 0;
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        struct binding *p = render_alloc(rd, cap, sizeof(*p));

        if (!p)
            return -1;
        if (s->n)
            memcpy(p, s->b, s->n * sizeof(*p));
        s->b = p;
        s->cap = cap;
    }
    s->b[s->n++] = (struct binding){sym, v};
    s->mask |= scope_bit(sym);
    return 0;
}

/* Runs `{% set ns.x = ... %}`, the only way to change an outer variable from inside a loop. */
static int assign_attr(struct render *rd, const struct node *target, struct value v) {
    struct value ns;

    TRY(eval_expr(rd, target->attr.obj, &ns));
    if (ns.type != V_NAMESPACE)
        return render_fail(rd, "cannot assign attribute on non-namespace object");
    return dict_set(rd, ns.dict, value_str(target->attr.name), v);
}

/* Binds the name, the namespace attribute or the tuple of names @target in the innermost scope.
 * Unpacks like Python: the number of values must be exact, nested targets are possible. */
static int eval_assign(struct render *rd, const struct node *target, struct value v) {
    struct value *items;
    uint32_t n;

    if (target->type == N_NAME)
        return scope_set(rd, rd->scope, target->name.sym, v);
    if (target->type == N_SET_ATTR)
        return assign_attr(rd, target, v);
    assert(target->type == N_TUPLE);
    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    TRY(value_items(rd, v, &items, &n));
    if (n != target->list.n)
        return render_fail(rd, "%s values to unpack (expected %u)",
                           n < target->list.n ? "not enough" : "too many", target->list.n);
    for (const struct node *t = target->list.first; t; t = t->next) {
        TRY(eval_assign(rd, t, *items++));
    }
    return 0;
}

/* Renders @body, in a scope of its own, into a string. Returns a positive value for a break or
 * continue inside it. */
int eval_capture(struct render *rd, const struct node *body, struct value *out) {
    struct sink *outer = rd->out, *k = sink_new(rd);
    struct scope *scope = rd->scope, *inner = scope_new(rd, scope);

    if (!k || !inner)
        return -1;
    rd->out = k;
    rd->scope = inner;
    int r = eval_block(rd, body);

    rd->out = outer;
    rd->scope = scope;
    scope_end(rd, inner);
    if (r)
        return r;
    const struct tstr *s = sink_string(rd, k);

    if (!s)
        return -1;
    *out = value_str(s);
    return 0;
}

/* Writes the str() of an expression; strings, which most are, directly. */
static int eval_print(struct render *rd, const struct node *n) {
    struct value v;

    TRY(eval_expr(rd, n->sub.a, &v));
    if (v.type == V_STR)
        return sink_add_str(rd, rd->out, v.s);
    return format_str(rd, rd->out, v);
}

/* Runs `if`. A chain of elif is a loop and no recursion, so it may have thousands of branches. */
static int branch(struct render *rd, const struct node *n) {
    const struct node *orelse = NULL;

    for (; n; n = n->branch.elif) {
        struct value test;

        TRY(eval_expr(rd, n->branch.test, &test));
        if (value_truth(test))
            return eval_block(rd, n->branch.body);
        orelse = n->branch.orelse;
    }
    return eval_block(rd, orelse);
}

/* Removes from @items those for which the loop's condition does not hold. */
static int eval_filter_items(struct render *rd, const struct node *n, struct value **items,
                             uint32_t *count) {
    struct value *kept = render_alloc(rd, *count, sizeof(*kept));
    struct scope *outer = rd->scope, *scope = scope_new(rd, outer);
    uint32_t k = 0;

    if (!kept || !scope)
        return -1;
    rd->scope = scope;
    for (uint32_t i = 0; i < *count; i++) {
        struct value test;

        if (eval_assign(rd, n->loop.target, (*items)[i]) || eval_expr(rd, n->loop.test, &test))
            return -1;
        if (value_truth(test))
            kept[k++] = (*items)[i];
    }
    rd->scope = outer;
    scope_end(rd, scope);
    *items = kept;
    *count = k;
    return 0;
}

/* Returns whether an `if` chooses an empty branch by tests that have the same values in each turn:
 * then no further turn can do anything. */
static int if_settled(struct render *rd, const struct node *n, bool *settled) {
    *settled = false;
    for (; n; n = n->branch.elif) {
        struct value test;

        if (!n->branch.invariant)
            return 0;
        TRY(eval_expr(rd, n->branch.test, &test));
        if (value_truth(test)) {
            *settled = !n->branch.body;
            return 0;
        }
        if (!n->branch.elif)
            *settled = !n->branch.orelse;
    }
    return 0;
}

/* Begins turn number loop->i in @scope. */
static int turn_begin(struct render *rd, const struct node *n, struct loop *loop,
                      struct scope *scope) {
    scope->n = 0;
    scope->mask = 0;
    rd->scope = scope;
    if (n->loop.named &&
        scope_set(rd, scope, rd->t->sym_loop, (struct value){.type = V_LOOP, .loop = loop}))
        return -1;
    return eval_assign(rd, n->loop.target, loop_at(loop, loop->i));
}

/* Runs the turns of a loop. The scope of a turn is used again for the next one, unless a macro that
 * was made in it may outlive the turn. Returns 0 after a `break`, which concerns this loop only. */
static int turns(struct render *rd, const struct node *n, struct loop *loop) {
    struct scope *outer = rd->scope, *scope = scope_new(rd, outer);
    bool settled = false;
    int r = 0;

    for (loop->i = 0; loop->i < loop->n && r >= 0 && r != FLOW_BREAK && !settled; loop->i++) {
        if (scope && scope->kept) {
            loop->taken = true;
            scope = scope_new(rd, outer);
        }
        if (!scope || render_charge(rd, 1) || turn_begin(rd, n, loop, scope))
            return -1;
        if (n->loop.settles && if_settled(rd, n->loop.body, &settled))
            return -1;
        if (!settled)
            r = eval_block(rd, n->loop.body);
    }
    loop->taken |= scope->kept;
    scope_end(rd, scope);
    rd->scope = outer;
    return MIN(r, 0);
}

static struct loop *loop_new(struct render *rd) {
    struct loop *l = rd->free_loops;

    if (!l)
        return render_alloc(rd, 1, sizeof(*l));
    rd->free_loops = l->next;
    *l = (struct loop){0};
    return l;
}

static void loop_end(struct render *rd, struct loop *l) {
    if (l->taken)
        return;
    l->next = rd->free_loops;
    rd->free_loops = l;
}

/* Sets the items of a loop, once, before the first turn, so the length of the loop stays the same
 * even if the body changes the list. */
static int loop_begin(struct render *rd, const struct node *n, struct value over,
                      struct loop *loop) {
    if (value_is_seq(over, SEQ_RANGE) && !n->loop.test) {
        loop->range = over.seq;
        loop->n = over.seq->n;
        return 0;
    }
    TRY(value_items(rd, over, &loop->items, &loop->n));
    if (!n->loop.test)
        return 0;
    return eval_filter_items(rd, n, &loop->items, &loop->n);
}

/* Runs the loop @n over the items of @over, in the innermost scope. */
static int run_over(struct render *rd, const struct node *n, struct value over, uint32_t depth) {
    struct loop *loop = loop_new(rd);

    if (!loop || loop_begin(rd, n, over, loop))
        return -1;
    loop->depth = depth;
    if (n->loop.recursive) {
        loop->node = n;
        loop->scope = rd->scope;
        loop->taken = true;
        scope_retain(rd->scope);
    }
    bool empty = loop->n == 0;

    if (!empty && turns(rd, n, loop))
        return -1;
    loop_end(rd, loop);
    if (!empty || !n->loop.orelse)
        return 0;
    struct scope *outer = rd->scope;

    struct scope *scope = scope_new(rd, outer);

    if (!scope)
        return -1;
    rd->scope = scope;
    int r = eval_block(rd, n->loop.orelse);

    scope_end(rd, scope);
    rd->scope = outer;
    return r;
}

static int run_loop(struct render *rd, const struct node *n) {
    struct value over;

    if (eval_expr(rd, n->loop.iter, &over))
        return -1;
    return run_over(rd, n, over, 0);
}

/* Calls a recursive loop: the text of the same loop over @over, one level deeper. */
int eval_loop_again(struct render *rd, const struct loop *loop, struct value over,
                    struct value *out) {
    struct scope *scope = rd->scope;
    struct sink *outer = rd->out, *k = sink_new(rd);

    if (!loop->node)
        return render_fail(rd, "The loop must have the 'recursive' marker to be called "
                               "recursively.");
    if (!k || render_enter_macro(rd))
        return -1;
    rd->out = k;
    rd->scope = loop->scope;
    TRY(run_over(rd, loop->node, over, loop->depth + 1));
    rd->macro_depth--;
    rd->scope = scope;
    rd->out = outer;
    const struct tstr *s = sink_string(rd, k);

    *out = value_str(s);
    if (!s)
        return -1;
    return 0;
}

/* Runs the filter chain of a block on *v: its innermost filter takes filter_input for its
 * operand. */
static int apply_filter(struct render *rd, const struct node *filter, struct value *v) {
    const struct value *outer = rd->filter_input, input = *v;

    if (!filter)
        return 0;
    rd->filter_input = &input;
    int r = eval_expr(rd, filter, v);

    rd->filter_input = outer;
    return r;
}

/* Runs a set statement. In a set block, a break leaves the loop around the block and drops its
 * text, so positive results are passed on. */
static int eval_set(struct render *rd, const struct node *n) {
    struct value v;
    int r;

    if (n->type == N_SET)
        r = eval_expr(rd, n->set.value, &v);
    else
        r = eval_capture(rd, n->set.body, &v);

    if (r)
        return r;
    if (n->type == N_SET_BLOCK && apply_filter(rd, n->set.filter, &v))
        return -1;
    return eval_assign(rd, n->set.target, v);
}

static int filter_block(struct render *rd, const struct node *n) {
    struct value v;
    int r = eval_capture(rd, n->set.body, &v);

    if (r || apply_filter(rd, n->set.filter, &v)) {
        if (!r)
            return -1;
        return r;
    }
    return format_str(rd, rd->out, v);
}

static int scope_block(struct render *rd, const struct node *n) {
    struct scope *outer = rd->scope, *inner = scope_new(rd, outer);

    if (!inner)
        return -1;
    rd->scope = inner;
    int r = eval_block(rd, n->set.body);

    scope_end(rd, inner);
    rd->scope = outer;
    return r;
}

/* Runs `with`. The values do not see the new names. */
static int with_block(struct render *rd, const struct node *n) {
    struct scope *outer = rd->scope, *inner = scope_new(rd, outer);
    const struct node *value = n->set.value;

    if (!inner)
        return -1;
    for (const struct node *t = n->set.target; t; t = t->next, value = value->next) {
        struct value v;

        rd->scope = outer;
        TRY(eval_expr(rd, value, &v));
        rd->scope = inner;
        TRY(eval_assign(rd, t, v));
    }
    rd->scope = inner;
    int r = eval_block(rd, n->set.body);

    scope_end(rd, inner);
    rd->scope = outer;
    return r;
}

/* Runs a block, which sees only the variables of the template itself. */
static int named_block(struct render *rd, const struct node *n) {
    struct scope *outer = rd->scope, *top = outer;

    while (top->up)
        top = top->up;
    rd->scope = top;
    int r = scope_block(rd, n);

    rd->scope = outer;
    return r;
}

static int autoescape(struct render *rd, const struct node *n) {
    struct value v;

    TRY(eval_expr(rd, n->set.value, &v));
    if (value_truth(v))
        return render_fail(rd, "autoescape is not supported");
    return scope_block(rd, n);
}

/* Makes a macro. The scopes that it can see must not be used again for later turns. */
static int make_macro(struct render *rd, const struct macro *def, struct value *out) {
    struct macro_value *m = render_alloc(rd, 1, sizeof(*m));

    if (!m)
        return -1;
    *m = (struct macro_value){def, rd->scope};
    scope_retain(rd->scope);
    *out = (struct value){.type = V_MACRO, .macro = m};
    return 0;
}

/* Writes the result of a call to which the block is given as caller(). */
static int call_block(struct render *rd, const struct node *n) {
    struct value caller, v;

    if (make_macro(rd, n->macro.def, &caller) || eval_call(rd, n->macro.call, &caller, &v))
        return -1;
    return format_str(rd, rd->out, v);
}

static int statement(struct render *rd, const struct node *n) {
    struct value v;

    switch (n->type) {
    case N_TEXT:
        return sink_add_str(rd, rd->out, n->constant.s);
    case N_OUTPUT:
        return eval_print(rd, n);
    case N_IF:
        return branch(rd, n);
    case N_FOR:
        return run_loop(rd, n);
    case N_SET:
    case N_SET_BLOCK:
        return eval_set(rd, n);
    case N_MACRO:
        TRY(make_macro(rd, n->macro.def, &v));
        return scope_set(rd, rd->scope, n->macro.def->sym, v);
    case N_FILTER_BLOCK:
        return filter_block(rd, n);
    case N_SCOPE:
        return scope_block(rd, n);
    case N_WITH:
        return with_block(rd, n);
    case N_CALL_BLOCK:
        return call_block(rd, n);
    case N_BLOCK:
        return named_block(rd, n);
    case N_AUTOESCAPE:
        return autoescape(rd, n);
    case N_BREAK:
        return FLOW_BREAK;
    default:
        assert(n->type == N_CONTINUE);
        return FLOW_CONTINUE;
    }
}

/* Runs statements in order up to a failure (negative) or a break or continue (positive). Unless
 * that fails, rd->scope and rd->out are the same afterwards. */
int eval_block(struct render *rd, const struct node *n) {
    const struct scope *scope = rd->scope;
    const struct sink *out = rd->out;
    int r = 0;

    TRY(render_enter(rd));
    for (; n && !r; n = n->next) {
        rd->line = n->line;
        r = render_charge(rd, 1);
        if (!r)
            r = statement(rd, n);
    }
    assert(r < 0 || (rd->scope == scope && rd->out == out && !rd->failed));
    render_exit(rd);
    return r;
}
