/*
 * eval_expr - evaluates expressions by recursion over the tree, with one function for each kind of
 * node, found in a table. The recursion is bounded twice, by the height of the tree (checked when
 * it was parsed) and by RENDER_DEPTH_MAX, which also counts macros calling macros. Every node costs
 * a step; work that is proportional to text or to the length of a list is charged where it is done.
 *
 * The line of an error is that of the innermost node that does something; it is set again after the
 * operands were evaluated, since a macro among them has lines of its own.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "text/template/render.h"

/* Looks up a name: in the scopes from the inside out, then among the request's variables, then
 * among the global functions. */
static int find_name(struct render *rd, const struct node *n, struct value *out) {
    uint32_t sym = n->name.sym;

    for (const struct scope *s = rd->scope; s; s = s->up) {
        const struct binding *b = scope_find(s, sym);

        TRY(render_charge(rd, s->n / 16));
        if (b) {
            *out = b->v;
            return 0;
        }
    }
    assert(sym < rd->t->n_symbols);
    *out = rd->globals[sym];
    if (out->type != V_MISSING)
        return 0;
    const struct builtin *fn = global_find(n->name.name);

    *out = fn ? (struct value){.type = V_FUNCTION, .fn = fn}
              : value_undefined(n->name.name, V_MISSING);
    return 0;
}

/* Evaluates a name. A loop that becomes a value may be used after it has ended. */
static int lookup(struct render *rd, const struct node *n, struct value *out) {
    TRY(find_name(rd, n, out));
    if (out->type == V_LOOP)
        out->loop->taken = true;
    return 0;
}

/* Evaluates the object of `x.y`, which is only looked at. */
static int eval_owner(struct render *rd, const struct node *n, struct value *out) {
    if (n->type != N_NAME)
        return eval_expr(rd, n, out);
    if (render_charge(rd, 1) || find_name(rd, n, out))
        return -1;
    return 0;
}

/* Makes the list or dict of a literal, a new object each time, since templates append to them. */
static int make_seq(struct render *rd, const struct node *n, struct value *out) {
    struct seq *s = seq_new(rd, n->type == N_LIST ? SEQ_LIST : SEQ_TUPLE, n->list.n);

    if (!s)
        return -1;
    for (const struct node *m = n->list.first; m; m = m->next) {
        struct value v;

        if (eval_expr(rd, m, &v) || seq_add(rd, s, v))
            return -1;
    }
    *out = value_seq(s);
    return 0;
}

static int make_dict(struct render *rd, const struct node *n, struct value *out) {
    struct dict *d = dict_new(rd, n->list.n);

    if (!d)
        return -1;
    for (const struct node *m = n->list.first; m; m = m->next->next) {
        struct value key, v;

        if (eval_expr(rd, m, &key) || eval_expr(rd, m->next, &v) || dict_set(rd, d, key, v))
            return -1;
    }
    *out = value_dict(d);
    return 0;
}

/* Evaluates `~`, which takes operands of all types and, unlike +, never escapes. */
static int concat(struct render *rd, const struct node *n, struct value *out) {
    const struct tstr *sum = NULL;

    for (const struct node *m = n->list.first; m; m = m->next) {
        const struct tstr *s;
        struct value v;

        if (eval_expr(rd, m, &v) || format_to_str(rd, v, &s))
            return -1;
        s = tstr_safe(rd, s, false);
        if (!s)
            return -1;
        sum = sum ? tstr_concat(rd, sum, s) : s;
        if (!sum)
            return -1;
    }
    assert(sum);
    *out = value_str(sum);
    return 0;
}

/* Evaluates a chain like a < b <= c. Each operand is evaluated once, up to the first comparison
 * that fails. */
static int eval_compare(struct render *rd, const struct node *n, struct value *out) {
    struct value a, b;
    bool holds = true;

    TRY(eval_expr(rd, n->list.first, &a));
    for (const struct node *m = n->list.first->next; m && holds; m = m->next) {
        if (eval_expr(rd, m->sub.a, &b) || operator_compare(rd, m->op, a, b, &holds))
            return -1;
        a = b;
    }
    *out = value_bool(holds);
    return 0;
}

/* Evaluates `and` and `or`, whose result is one of their operands and not a bool. */
static int logic(struct render *rd, const struct node *n, struct value *out) {
    TRY(eval_expr(rd, n->sub.a, out));
    if (value_truth(*out) == (n->type == N_OR))
        return 0;
    return eval_expr(rd, n->sub.b, out);
}

/* Evaluates `a if c else b`. Without an else the result is undefined, which prints as nothing. */
static int condition(struct render *rd, const struct node *n, struct value *out) {
    struct value test;

    TRY(eval_expr(rd, n->sub.a, &test));
    if (value_truth(test))
        return eval_expr(rd, n->sub.b, out);
    if (n->sub.c)
        return eval_expr(rd, n->sub.c, out);
    *out = value_undefined(NULL, V_MISSING);
    return 0;
}

static int eval_sign(struct render *rd, const struct node *n, struct value *out) {
    struct value v;

    TRY(eval_expr(rd, n->sub.a, &v));
    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    if (v.type == V_FLOAT) {
        *out = value_float(n->type == N_NEG ? -v.f : v.f);
        return 0;
    }
    if (!value_is_int(v))
        return render_fail(rd, "bad operand type for unary %c: '%s'", n->type == N_NEG ? '-' : '+',
                           value_type_name(v));
    wide number = value_wide(v);

    return value_from_wide(rd, n->type == N_NEG ? -number : number, out);
}

static int binary(struct render *rd, const struct node *n, struct value *out) {
    struct value a, b;

    if (eval_expr(rd, n->sub.a, &a) || eval_expr(rd, n->sub.b, &b))
        return -1;
    rd->line = n->line;
    return operator_binary(rd, n->op, a, b, out);
}

static int item(struct render *rd, const struct node *n, struct value *out) {
    struct value obj, key;

    if (eval_expr(rd, n->sub.a, &obj) || eval_expr(rd, n->sub.b, &key))
        return -1;
    rd->line = n->line;
    return operator_item(rd, obj, key, out);
}

static int eval_slice(struct render *rd, const struct node *n, struct value *out) {
    const struct node *bounds[3] = {n->sub.b, n->sub.c, n->sub.d};
    struct value obj, bound[3];

    TRY(eval_expr(rd, n->sub.a, &obj));
    for (int i = 0; i < 3; i++) {
        bound[i] = value_none();
        if (bounds[i] && eval_expr(rd, bounds[i], &bound[i]))
            return -1;
    }
    rd->line = n->line;
    return operator_slice(rd, obj, bound, out);
}

static int attr(struct render *rd, const struct node *n, struct value *out) {
    struct value obj;

    TRY(eval_owner(rd, n->attr.obj, &obj));
    rd->line = n->line;
    if (!n->attr.is_method && (obj.type == V_DICT || obj.type == V_NAMESPACE)) {
        int r = dict_get_str(rd, obj.dict, n->attr.name, out);

        if (r == 0)
            *out = value_undefined(n->attr.name, obj.type);
        return MIN(r, 0);
    }
    return operator_attr(rd, obj, n->attr.name, out);
}

/* Room for the arguments of most calls, on the stack: a loop over the history may call a million
 * times. Nothing refers to it after the call. */
struct few_args {
    struct value pos[3];
    struct named_value kw[2];
};

static int add_kwarg(struct args *args, const struct tstr *name, struct value v) {
    args->kw[args->n_kw++] = (struct named_value){name, v};
    return 0;
}

/* Appends the elements of *args and the entries of **kwargs. */
static int eval_stars(struct render *rd, const struct node_args *a, struct args *args) {
    struct value v, *items = NULL;
    uint32_t n = 0;

    if (a->star && (eval_expr(rd, a->star, &v) || value_items(rd, v, &items, &n)))
        return -1;
    if (n) {
        struct value *pos = render_alloc(rd, (size_t)args->n_pos + n, sizeof(*pos));

        if (!pos)
            return -1;
        if (args->n_pos)
            memcpy(pos, args->pos, args->n_pos * sizeof(*pos));
        memcpy(pos + args->n_pos, items, n * sizeof(*pos));
        args->pos = pos;
        args->n_pos += n;
    }
    if (!a->star_star)
        return 0;
    TRY(eval_expr(rd, a->star_star, &v));
    if (v.type != V_DICT)
        return render_fail(rd, "argument after ** must be a mapping, not %s", value_type_name(v));
    struct named_value *kw = render_alloc(rd, (size_t)args->n_kw + v.dict->n, sizeof(*kw));

    if (!kw)
        return -1;
    if (args->n_kw)
        memcpy(kw, args->kw, args->n_kw * sizeof(*kw));
    args->kw = kw;
    for (uint32_t i = 0; i < v.dict->n; i++) {
        if (v.dict->e[i].key.type != V_STR)
            return render_fail(rd, "keywords must be strings");
        add_kwarg(args, v.dict->e[i].key.s, v.dict->e[i].value);
    }
    return 0;
}

/* Evaluates the arguments of a call: the positional ones, then the keywords, both in the order in
 * which they are written. */
static int eval_args(struct render *rd, const struct node_args *a, struct few_args *few,
                     struct args *args) {
    *args = (struct args){.pos = few->pos, .kw = few->kw};
    if (a->n_pos > ARRAY_SIZE(few->pos) &&
        !(args->pos = render_alloc(rd, a->n_pos, sizeof(*args->pos))))
        return -1;
    if (a->n_kw > ARRAY_SIZE(few->kw) && !(args->kw = render_alloc(rd, a->n_kw, sizeof(*args->kw))))
        return -1;
    for (const struct node *n = a->pos; n; n = n->next) {
        TRY(eval_expr(rd, n, &args->pos[args->n_pos++]));
    }
    for (const struct node_kwarg *kw = a->kw; kw; kw = kw->next) {
        struct value v;

        TRY(eval_expr(rd, kw->value, &v));
        add_kwarg(args, kw->name, v);
    }
    if (!a->star && !a->star_star)
        return 0;
    return eval_stars(rd, a, args);
}

/* Adds the argument `caller` of a call block. */
static int add_caller(struct render *rd, struct args *args, struct value caller) {
    struct named_value *kw = render_alloc(rd, (size_t)args->n_kw + 1, sizeof(*kw));

    if (!kw)
        return -1;
    if (args->n_kw)
        memcpy(kw, args->kw, args->n_kw * sizeof(*kw));
    args->kw = kw;
    return add_kwarg(args, TSTR_STATIC("caller"), caller);
}

/* Evaluates a call. `x.f(...)`, by far the most frequent form, calls the method without making an
 * object for it. */
int eval_call(struct render *rd, const struct node *n, const struct value *caller,
              struct value *out) {
    const struct node *fn = n->call.obj;
    const struct builtin *method = NULL;
    struct value f, self = {0};
    struct few_args few;
    struct args args;

    if (fn->type == N_ATTR) {
        TRY(eval_owner(rd, fn->attr.obj, &self));
        if (fn->attr.is_method)
            method = method_find(self, fn->attr.name);
        if (!method && operator_attr(rd, self, fn->attr.name, &f))
            return -1;
    } else if (eval_expr(rd, fn, &f)) {
        return -1;
    }
    TRY(eval_args(rd, &n->call.args, &few, &args));
    if (caller)
        TRY(add_caller(rd, &args, *caller));
    rd->line = n->line;
    if (method)
        return call_builtin(rd, method, "method", self, &args, out);
    return call_value(rd, f, &args, out);
}

static int call(struct render *rd, const struct node *n, struct value *out) {
    return eval_call(rd, n, NULL, out);
}

/* Returns whether a filter, like `last`, reads a sequence that a filter before it has made: it can
 * be reused afterwards. Without that, `messages | select(..) | list | last` for each message of a
 * long conversation fills the memory. */
static bool reads_temporary(const struct node *n) {
    const struct node *from = n->call.obj;

    return n->call.fn && n->call.fn->memory == BUILTIN_READS_SEQ && from &&
           from->type == N_FILTER && from->call.fn && from->call.fn->memory == BUILTIN_MAKES_SEQ;
}

/* Evaluates a filter. The filter of a block has no operand: it takes the text of the block. */
static int filter(struct render *rd, const struct node *n, struct value *out) {
    struct value self;
    struct few_args few;
    struct args args;

    assert(n->call.obj ||
           rd->filter_input); /* the parser leaves obj out in a block's filter only */
    if (!n->call.obj)
        self = *rd->filter_input;
    if ((n->call.obj && eval_expr(rd, n->call.obj, &self)) ||
        eval_args(rd, &n->call.args, &few, &args))
        return -1;
    rd->line = n->line;
    TRY(call_named(rd, "filter", n->call.fn, n->call.name, self, &args, out));
    if (reads_temporary(n) && self.type == V_SEQ && !self.seq->shared)
        seq_end(rd, self.seq);
    return 0;
}

static int test(struct render *rd, const struct node *n, struct value *out) {
    struct value self, is;
    struct few_args few;
    struct args args;

    if (eval_expr(rd, n->call.obj, &self) || eval_args(rd, &n->call.args, &few, &args))
        return -1;
    rd->line = n->line;
    TRY(call_named(rd, "test", n->call.fn, n->call.name, self, &args, &is));
    *out = value_bool(value_truth(is) != n->op);
    return 0;
}

static int negation(struct render *rd, const struct node *n, struct value *out) {
    struct value v;

    TRY(eval_expr(rd, n->sub.a, &v));
    *out = value_bool(!value_truth(v));
    return 0;
}

typedef int (*eval_fn)(struct render *rd, const struct node *n, struct value *out);

static const eval_fn EVAL[] = {
    [N_NAME] = lookup,
    [N_LIST] = make_seq,
    [N_TUPLE] = make_seq,
    [N_DICT] = make_dict,
    [N_ATTR] = attr,
    [N_ITEM] = item,
    [N_SLICE] = eval_slice,
    [N_CALL] = call,
    [N_FILTER] = filter,
    [N_TEST] = test,
    [N_BINARY] = binary,
    [N_CONCAT] = concat,
    [N_COMPARE] = eval_compare,
    [N_AND] = logic,
    [N_OR] = logic,
    [N_NOT] = negation,
    [N_NEG] = eval_sign,
    [N_POS] = eval_sign,
    [N_COND] = condition,
};

int eval_expr(struct render *rd, const struct node *n, struct value *out) {
    if (n->type == N_CONST) {
        *out = n->constant;
        return 0;
    }
    if (render_enter(rd) || render_charge(rd, 1))
        return -1;
    assert(n->type < ARRAY_SIZE(EVAL) && EVAL[n->type]);
    int r = EVAL[n->type](rd, n, out);

    render_exit(rd);
    return r;
}
