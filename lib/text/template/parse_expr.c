/*
 * parse_expr - parses expressions. The operators, from the loosest to the tightest:
 *
 *   a if c else b
 *   or, and, not
 *   == != < <= > >= in, not in
 *   + -
 *   ~
 *   * / // %
 *   **
 *   unary - +
 *   .x [x] (x), then | and is
 *
 * A filter binds tighter than any operator: 1 + x|length is 1 + (x|length). All binary operators
 * group to the left. Every node knows the height of the tree below it, since a long chain of
 * operators is a deep tree although nothing in it is nested.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "text/template/parser.h"
#include "text/template/render.h"

static int parse_compare(struct parser *p, struct node **out);
static int parse_unary(struct parser *p, bool filters, struct node **out);
static int parse_primary(struct parser *p, struct node **out);
static int parse_postfix(struct parser *p, struct node *n, struct node **out);

/* Makes a node with up to two operands. */
static int parse_join(struct parser *p, uint8_t type, uint8_t op, uint32_t line, struct node *a,
                      struct node *b, struct node **out) {
    struct node *n = parser_node(p, type, line);

    assert(a);
    if (!n || parser_raise(p, n, a) || parser_raise(p, n, b))
        return -EINVAL;
    n->op = op;
    n->sub.a = a;
    n->sub.b = b;
    *out = n;
    return 0;
}

static int parse_not(struct parser *p, struct node **out) {
    uint32_t line = p->tok->line;
    struct node *a;

    if (!parser_skip_name(p, "not"))
        return parse_compare(p, out);
    if (parser_enter(p) || parse_not(p, &a))
        return -EINVAL;
    p->depth--;
    return parse_join(p, N_NOT, 0, line, a, NULL, out);
}

/* Parses operands that @word separates (`and`, `or`), and makes a node of @type for each pair. */
static int parse_chain(struct parser *p, const char *word, uint8_t type,
                       int (*operand)(struct parser *p, struct node **out), struct node **out) {
    if (operand(p, out))
        return -EINVAL;
    while (parser_is_name(p, word)) {
        uint32_t line = p->tok++->line;
        const struct node *unknown = p->unknown;
        struct node *b;

        if (operand(p, &b) || parse_join(p, type, 0, line, *out, b, out))
            return -EINVAL;
        p->unknown = unknown; /* the second operand may never be evaluated */
    }
    return 0;
}

static int parse_and(struct parser *p, struct node **out) {
    return parse_chain(p, "and", N_AND, parse_not, out);
}

static int parse_or(struct parser *p, struct node **out) {
    return parse_chain(p, "or", N_OR, parse_and, out);
}

/* Parses `a if b else c`, which groups to the right: a if b else (c if d else e). Unknown filters
 * and tests in it, also in b, fail when they are evaluated. */
static int parse_condition(struct parser *p, struct node **out) {
    const struct node *unknown = p->unknown;

    TRY(parse_or(p, out));
    if (parser_is_name(p, "if"))
        p->unknown = unknown;
    while (parser_is_name(p, "if")) {
        struct node *n = parser_node(p, N_COND, p->tok++->line), *test, *other = NULL;

        p->conditional++;
        if (!n || parse_or(p, &test))
            return -EINVAL;
        if (parser_skip_name(p, "else") && (parser_enter(p) || parse_condition(p, &other)))
            return -EINVAL;
        p->depth -= other != NULL;
        p->conditional--;
        if (parser_raise(p, n, *out) || parser_raise(p, n, test) || parser_raise(p, n, other))
            return -EINVAL;
        n->sub.a = test;
        n->sub.b = *out;
        n->sub.c = other;
        *out = n;
    }
    return 0;
}

/* Returns whether the current token ends a tuple; a comma may stand before it. */
static bool at_tuple_end(const struct parser *p, bool brackets) {
    if (p->tok->type == T_BLOCK_END || p->tok->type == T_PRINT_END)
        return true;
    return parser_is_op(p, ')') || (!brackets && parser_is_name(p, "in"));
}

static int parse_one(struct parser *p, unsigned how, struct node **out) {
    if (how & PARSE_NO_COND)
        return parse_or(p, out);
    return parse_condition(p, out);
}

/* Parses a tuple. Without brackets it must have at least one member. */
static int parse_tuple(struct parser *p, unsigned how, bool brackets, struct node **out) {
    struct node *tuple = parser_node(p, N_TUPLE, p->tok->line), **end;
    bool comma = false;

    if (!tuple)
        return -EINVAL;
    end = &tuple->list.first;
    for (;;) {
        if (tuple->list.n && !comma)
            break;
        if (at_tuple_end(p, brackets))
            break;
        if (parse_one(p, how, end) || parser_raise(p, tuple, *end))
            return -EINVAL;
        end = &(*end)->next;
        tuple->list.n++;
        comma = parser_skip_op(p, ',');
        if (!comma && tuple->list.n == 1) {
            *out = tuple->list.first;
            return 0;
        }
    }
    if (!tuple->list.n && !brackets)
        return parser_unexpected(p, "an expression");
    *out = tuple;
    return 0;
}

int parse_expr(struct parser *p, unsigned how, struct node **out) {
    TRY(parser_enter(p));
    uint32_t depth = p->depth, conditional = p->conditional;
    int r;

    if (how & PARSE_TUPLE)
        r = parse_tuple(p, how, false, out);
    else
        r = parse_one(p, how, out);

    /* Asserts that nesting is balanced; after an error parsing stops. */
    assert(r || (p->depth == depth && p->conditional == conditional));
    p->depth--;
    return r;
}

/* Returns the comparison that begins at the current token, and the number of its tokens in
 * *@n_tokens; -1: there is none. */
static int comparison_here(const struct parser *p, size_t *n_tokens) {
    static const struct {
        uint16_t op;
        uint8_t cmp;
    } ops[] = {{LEX2('=', '='), CMP_EQ},
               {LEX2('!', '='), CMP_NE},
               {'<', CMP_LT},
               {LEX2('<', '='), CMP_LE},
               {'>', CMP_GT},
               {LEX2('>', '='), CMP_GE}};

    *n_tokens = 1;
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
        if (parser_is_op(p, ops[i].op))
            return ops[i].cmp;
    }
    if (parser_is_name(p, "in"))
        return CMP_IN;
    *n_tokens = 2;
    if (parser_is_name(p, "not") && p->tok[1].type == T_NAME && p->tok[1].len == 2 &&
        memcmp(p->tok[1].s, "in", 2) == 0)
        return CMP_NOT_IN;
    return -1;
}

static const struct {
    uint16_t token;
    uint8_t op, level;
} BINARY[] = {
    {'+', OP_ADD, 1},
    {'-', OP_SUB, 1},
    {'*', OP_MUL, 2},
    {'/', OP_DIV, 2},
    {LEX2('/', '/'), OP_FLOORDIV, 2},
    {'%', OP_MOD, 2},
    {LEX2('*', '*'), OP_POW, 3},
};

/* Returns the operator of @level at the current token, or -1. */
static int binary_here(const struct parser *p, int level) {
    for (size_t i = 0; i < ARRAY_SIZE(BINARY); i++) {
        if (BINARY[i].level == level && parser_is_op(p, BINARY[i].token))
            return BINARY[i].op;
    }
    return -1;
}

static int parse_concat(struct parser *p, struct node **out);

/* Parses operators of one level, which group to the left: 1 has sums of concatenations, 2 products
 * of powers, 3 powers of unary expressions. */
static int parse_binary(struct parser *p, int level, struct node **out) {
    for (struct node *left = NULL;; left = *out) {
        int op = left ? binary_here(p, level) : 0;
        uint32_t line = p->tok->line;

        if (op < 0)
            return 0;
        p->tok += left != NULL;
        int r;
        if (level == 1)
            r = parse_concat(p, out);
        else if (level == 2)
            r = parse_binary(p, 3, out);
        else
            r = parse_unary(p, true, out);

        if (r || (left && parse_join(p, N_BINARY, (uint8_t)op, line, left, *out, out)))
            return -EINVAL;
    }
}

/* Parses `a ~ b ~ c`. */
static int parse_concat(struct parser *p, struct node **out) {
    TRY(parse_binary(p, 2, out));
    if (!parser_is_op(p, '~'))
        return 0;
    struct node *n = parser_node(p, N_CONCAT, p->tok->line), *last = *out;

    if (!n || parser_raise(p, n, last))
        return -EINVAL;
    n->list.first = last;
    n->list.n = 1;
    while (parser_skip_op(p, '~')) {
        if (parse_binary(p, 2, &last->next) || parser_raise(p, n, last->next))
            return -EINVAL;
        last = last->next;
        n->list.n++;
    }
    *out = n;
    return 0;
}

/* Parses comparisons. a < b < c is one node, since b is evaluated once. */
static int parse_compare(struct parser *p, struct node **out) {
    size_t n_tokens;
    uint32_t line = p->tok->line;

    TRY(parse_binary(p, 1, out));
    if (comparison_here(p, &n_tokens) < 0)
        return 0;
    struct node *n = parser_node(p, N_COMPARE, line), *last = *out;

    if (!n || parser_raise(p, n, last))
        return -EINVAL;
    n->list.first = last;
    n->list.n = 1;
    for (int cmp; (cmp = comparison_here(p, &n_tokens)) >= 0; last = last->next) {
        struct node *operand;

        p->tok += n_tokens;
        if (parse_binary(p, 1, &operand) || parser_raise(p, n, operand))
            return -EINVAL;
        /* Stores the comparison together with its right operand, in a node around that operand. */
        struct node *member = parser_node(p, N_COND, operand->line);

        if (!member)
            return -EINVAL;
        member->op = (uint8_t)cmp;
        member->sub.a = operand;
        last->next = member;
        n->list.n++;
    }
    *out = n;
    return 0;
}

/* Parses unary minus and plus. Their operand may have subscripts and calls but no filter: -x|abs is
 * (-x)|abs. */
static int parse_unary(struct parser *p, bool filters, struct node **out) {
    uint32_t line = p->tok->line;
    bool minus = parser_is_op(p, '-');

    if (minus || parser_is_op(p, '+')) {
        struct node *a;

        p->tok++;
        if (parser_enter(p) || parse_unary(p, false, &a))
            return -EINVAL;
        p->depth--;
        TRY(parse_join(p, minus ? N_NEG : N_POS, 0, line, a, NULL, out));
    } else if (parse_primary(p, out)) {
        return -EINVAL;
    }
    TRY(parse_postfix(p, *out, out));
    if (!filters)
        return 0;
    return parse_filters(p, *out, false, out);
}

/* Parses the members of a list or dict up to @close. */
static int parse_members(struct parser *p, uint16_t close, struct node *n) {
    struct node **end = &n->list.first;

    while (!parser_skip_op(p, close)) {
        if (n->list.n && parser_expect_op(p, ','))
            return -EINVAL;
        if (parser_skip_op(p, close))
            break;
        if (parse_expr(p, 0, end) || parser_raise(p, n, *end))
            return -EINVAL;
        end = &(*end)->next;
        if (close == '}') {
            if (parser_expect_op(p, ':') || parse_expr(p, 0, end) || parser_raise(p, n, *end))
                return -EINVAL;
            end = &(*end)->next;
        }
        n->list.n++;
    }
    return 0;
}

/* Parses brackets: ( ) groups or makes a tuple, [ ] makes a list, { } a dict. */
static int parse_brackets(struct parser *p, struct node **out) {
    uint32_t line = p->tok->line;

    if (parser_skip_op(p, '(')) {
        if (parser_enter(p) || parse_tuple(p, PARSE_TUPLE, true, out))
            return -EINVAL;
        p->depth--;
        return parser_expect_op(p, ')');
    }
    bool list = parser_is_op(p, '[');

    if (!list && !parser_is_op(p, '{'))
        return parser_unexpected(p, "an expression");
    p->tok++;
    struct node *n = parser_node(p, list ? N_LIST : N_DICT, line);

    if (!n || parse_members(p, list ? ']' : '}', n))
        return -EINVAL;
    *out = n;
    return 0;
}

static int parse_name(struct parser *p, struct node *n) {
    static const struct {
        const char *name;
        struct value v;
    } constants[] = {
        {"true", {.type = V_BOOL, .b = true}},
        {"True", {.type = V_BOOL, .b = true}},
        {"false", {.type = V_BOOL, .b = false}},
        {"False", {.type = V_BOOL, .b = false}},
        {"none", {.type = V_NONE}},
        {"None", {.type = V_NONE}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(constants); i++) {
        if (parser_skip_name(p, constants[i].name)) {
            n->constant = constants[i].v;
            return 0;
        }
    }
    const struct tstr *name;

    n->type = N_NAME;
    if (parser_expect_name(p, &name) || parser_symbol(p, name, true, &n->name.sym))
        return -EINVAL;
    n->name.name = name;
    return 0;
}

/* Parses a string. Adjacent strings are one. */
static int parse_string(struct parser *p, struct node *n) {
    const struct token *first = p->tok;
    size_t len = 0, k = 0;

    while (p->tok->type == T_STRING)
        len += p->tok++->len;
    char *s = arena_alloc(&p->t->arena, len + 1);

    if (!s)
        return parser_fail(p, "the template needs too much memory");
    for (; first < p->tok; k += first++->len)
        memcpy(s + k, first->s, first->len);
    const struct tstr *str = parser_string(p, s, len);

    n->constant = value_str(str);
    if (!str)
        return -EINVAL;
    return 0;
}

static int parse_primary(struct parser *p, struct node **out) {
    struct node *n;

    if (p->tok->type == T_OP || p->tok->type < T_NAME)
        return parse_brackets(p, out);
    n = parser_node(p, N_CONST, p->tok->line);
    if (!n)
        return -EINVAL;
    *out = n;
    switch (p->tok->type) {
    case T_NAME:
        return parse_name(p, n);
    case T_STRING:
        return parse_string(p, n);
    case T_FLOAT:
        n->constant = value_float(p->tok++->f);
        return 0;
    default:
        n->constant = p->tok->i > INT64_MAX ? (struct value){.type = V_UINT, .u = p->tok->i}
                                            : value_int((int64_t)p->tok->i);
        p->tok++;
        return 0;
    }
}

/* Parses the inside of `x[...]`: an index or a slice. */
static int parse_subscript(struct parser *p, struct node *n) {
    struct node *bound[3] = {NULL};
    int k = 0;

    for (;; k++) {
        bool empty = parser_is_op(p, ':') || parser_is_op(p, ']');

        if (!empty &&
            (parse_expr(p, k ? 0 : PARSE_TUPLE, &bound[k]) || parser_raise(p, n, bound[k])))
            return -EINVAL;
        if (k == 2 || !parser_skip_op(p, ':'))
            break;
    }
    if (k == 0 && !bound[0])
        return parser_unexpected(p, "an index");
    n->type = k ? N_SLICE : N_ITEM;
    n->sub.b = bound[0];
    n->sub.c = bound[1];
    n->sub.d = bound[2];
    return parser_expect_op(p, ']');
}

static int parse_kwarg(struct parser *p, struct node *n, struct node_kwarg ***end) {
    struct node_kwarg *kw = arena_alloc(&p->t->arena, sizeof(*kw));

    if (!kw)
        return parser_fail(p, "the template needs too much memory");
    if (parser_expect_name(p, &kw->name) || parser_expect_op(p, '=') ||
        parse_expr(p, 0, &kw->value) || parser_raise(p, n, kw->value))
        return -EINVAL;
    **end = kw;
    *end = &kw->next;
    n->call.args.n_kw++;
    return 0;
}

/* Parses arguments, `(a, b=c, *d, **e)`; the bracket is the current token. */
static int parse_args(struct parser *p, struct node *n) {
    struct node_args *args = &n->call.args;
    struct node **end = &args->pos;
    struct node_kwarg **kw_end = &args->kw;

    p->tok++;
    for (bool first = true; !parser_skip_op(p, ')'); first = false) {
        if (!first && parser_expect_op(p, ','))
            return -EINVAL;
        if (!first && parser_skip_op(p, ')'))
            return 0;
        bool star = parser_is_op(p, '*'), stars = parser_is_op(p, LEX2('*', '*'));
        int r;

        if (star || stars) {
            struct node **to = star ? &args->star : &args->star_star;

            p->tok++;
            if (*to)
                return parser_fail(p, "invalid syntax for a call");
            r = parse_expr(p, 0, to) || parser_raise(p, n, *to);
        } else if (p->tok->type == T_NAME && p->tok[1].type == T_OP && p->tok[1].op == '=') {
            r = parse_kwarg(p, n, &kw_end);
        } else {
            if (args->kw || args->star || args->star_star)
                return parser_fail(p, "a positional argument after a keyword");
            r = parse_expr(p, 0, end) || parser_raise(p, n, *end);
            if (!r)
                end = &(*end)->next;
            args->n_pos++;
        }
        if (r)
            return -EINVAL;
    }
    return 0;
}

static int parse_call(struct parser *p, struct node *fn, struct node **out) {
    struct node *n = parser_node(p, N_CALL, p->tok->line);

    if (!n || parser_raise(p, n, fn))
        return -EINVAL;
    n->call.obj = fn;
    *out = n;
    return parse_args(p, n);
}

/* Parses any number of .name, .0, [index] and (arguments). */
static int parse_postfix(struct parser *p, struct node *n, struct node **out) {
    for (;; n = *out) {
        struct node *obj = n;

        *out = n;
        if (parser_is_op(p, '(')) {
            TRY(parse_call(p, obj, out));
            continue;
        }
        if (!parser_is_op(p, '.') && !parser_is_op(p, '['))
            return 0;
        *out = n = parser_node(p, N_ATTR, p->tok->line);
        if (!n || parser_raise(p, n, obj))
            return -EINVAL;
        if (parser_skip_op(p, '[')) {
            n->sub.a = obj;
            TRY(parse_subscript(p, n));
        } else if ((++p->tok)->type == T_INT) { /* x.0: a subscript */
            n->type = N_ITEM;
            n->sub.a = obj;
            TRY(parse_primary(p, &n->sub.b));
        } else {
            n->attr.obj = obj;
            TRY(parser_expect_name(p, &n->attr.name));
            n->attr.is_method = method_exists(n->attr.name);
        }
    }
}

/* Parses the name of a filter, `name.of.filter`, as one name. */
static int parse_dotted(struct parser *p, const struct tstr **out) {
    char name[128];
    size_t n = 0;

    do {
        if (p->tok->type != T_NAME || p->tok->len + n + 1 >= sizeof(name))
            return parser_unexpected(p, "a name");
        if (n)
            name[n++] = '.';
        memcpy(name + n, p->tok->s, p->tok->len);
        n += p->tok++->len;
    } while (parser_skip_op(p, '.'));
    char *s = arena_strndup(&p->t->arena, name, n);

    *out = s ? parser_string(p, s, n) : NULL;
    if (!*out)
        return parser_fail(p, "the template needs too much memory");
    return 0;
}

/* Records a filter or test that does not exist: an error, unless it is in a branch. */
static void note_unknown(struct parser *p, const struct node *n) {
    if (!p->conditional && !p->unknown && !n->call.fn)
        p->unknown = n;
}

static int parse_filter(struct parser *p, struct node *obj, struct node **out) {
    struct node *n = parser_node(p, N_FILTER, p->tok->line);

    if (!n || parser_raise(p, n, obj) || parse_dotted(p, &n->call.name))
        return -EINVAL;
    n->call.obj = obj;
    *out = n;
    n->call.fn = filter_find(n->call.name);
    note_unknown(p, n);
    if (!parser_is_op(p, '('))
        return 0;
    return parse_args(p, n);
}

/* Returns whether the argument of a test can begin here without brackets: `x is divisibleby 3`. */
static bool starts_argument(const struct parser *p) {
    if (p->tok->type == T_NAME)
        return !parser_is_name(p, "else") && !parser_is_name(p, "or") && !parser_is_name(p, "and");
    return (p->tok->type >= T_STRING && p->tok->type <= T_FLOAT) || parser_is_op(p, '[') ||
           parser_is_op(p, '{');
}

/* Parses a test: `is name(arguments)` or `is not ...`, with one argument also without brackets. */
static int parse_test(struct parser *p, struct node *obj, struct node **out) {
    struct node *n = parser_node(p, N_TEST, p->tok++->line);

    if (!n || parser_raise(p, n, obj))
        return -EINVAL;
    n->op = parser_skip_name(p, "not");
    n->call.obj = obj;
    *out = n;
    TRY(parse_dotted(p, &n->call.name));
    n->call.fn = test_find(n->call.name);
    note_unknown(p, n);
    if (parser_is_op(p, '('))
        return parse_args(p, n);
    if (!starts_argument(p))
        return 0;
    if (parser_is_name(p, "is"))
        return parser_fail(p, "tests with 'is' cannot be chained");
    n->call.args.n_pos = 1;
    if (parser_enter(p) || parse_primary(p, &n->call.args.pos) ||
        parse_postfix(p, n->call.args.pos, &n->call.args.pos))
        return -EINVAL;
    p->depth--;
    return parser_raise(p, n, n->call.args.pos);
}

int parse_filters(struct parser *p, struct node *obj, bool first, struct node **out) {
    *out = obj;
    for (;;) {
        if (first || parser_skip_op(p, '|')) {
            TRY(parse_filter(p, *out, out));
        } else if (*out && parser_is_name(p, "is")) {
            TRY(parse_test(p, *out, out));
        } else if (*out && parser_is_op(p, '(')) {
            TRY(parse_call(p, *out, out));
        } else {
            return 0;
        }
        first = false;
    }
}

static int parse_targets(struct parser *p, bool attr, bool brackets, struct node **out);

/* Parses the target of an assignment: a name, or targets in brackets. ns.attr is allowed only where
 * a namespace may be assigned to, and reads the variable ns. */
static int parse_one_target(struct parser *p, bool attr, struct node **out) {
    uint32_t line = p->tok->line;

    if (parser_is_op(p, '(')) {
        p->tok++;
        TRY(parser_enter(p));
        TRY(parse_targets(p, attr, true, out));
        p->depth--;
        return parser_expect_op(p, ')');
    }
    const struct tstr *name;
    struct node *n = parser_node(p, N_NAME, line);

    if (!n || parser_expect_name(p, &name))
        return -EINVAL;
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None", "not",
                                           "and",  "or",   "in",    "if",    "else", "is"};

    for (size_t i = 0; i < ARRAY_SIZE(reserved); i++) {
        if (tstr_is(name, reserved[i]))
            return parser_fail(p, "cannot assign to '%s'", reserved[i]);
    }
    bool with_attr = attr && parser_skip_op(p, '.');

    TRY(parser_symbol(p, name, with_attr, &n->name.sym));
    n->name.name = name;
    *out = n;
    if (!with_attr)
        return 0;
    struct node *a = parser_node(p, N_SET_ATTR, line);

    if (!a)
        return -EINVAL;
    a->attr.obj = n;
    *out = a;
    return parser_expect_name(p, &a->attr.name);
}

static bool at_targets_end(struct parser *p, bool brackets) {
    if (brackets)
        return parser_is_op(p, ')');
    return at_tuple_end(p, false);
}

/* Parses targets that commas separate; behind a bracket they end at `)`. */
static int parse_targets(struct parser *p, bool attr, bool brackets, struct node **out) {
    struct node *tuple = parser_node(p, N_TUPLE, p->tok->line), **end;

    if (!tuple)
        return -EINVAL;
    end = &tuple->list.first;
    do {
        if (tuple->list.n && at_targets_end(p, brackets))
            break;
        TRY(parse_one_target(p, attr, end));
        end = &(*end)->next;
        tuple->list.n++;
    } while (parser_skip_op(p, ','));
    bool one = tuple->list.n == 1 && !(p->tok[-1].type == T_OP && p->tok[-1].op == ',');

    *out = one ? tuple->list.first : tuple;
    return 0;
}

int parse_target(struct parser *p, bool attr, struct node **out) {
    return parse_targets(p, attr, false, out);
}
