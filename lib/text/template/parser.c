/*
 * parser - parses statements. Each has a function in the table STATEMENTS that is called behind the
 * tag's name and leaves the current token at the end of its last tag. A body ends at a tag that its
 * statement chooses, which is compared before the table is searched; so an `endif` in the wrong
 * place is an unknown tag.
 *
 * The parser numbers names, and records which names are read as variables: only those are looked up
 * among a request's variables, and template_uses() returns this record.
 */

#include "text/template/parser.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"

int parser_fail(struct parser *p, const char *fmt, ...) {
    char reason[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    return lexer_fail(p->err, p->tok->line, "%s", reason);
}

/* Fails with a message that names the current token, found instead of @wanted. */
int parser_unexpected(struct parser *p, const char *wanted) {
    const struct token *t = p->tok;
    int len = (int)MIN(t->len, (size_t)40);

    assert(t->type != T_END); /* the lexer refuses a tag without an end */
    switch (t->type) {
    case T_BLOCK_END:
    case T_PRINT_END:
        return parser_fail(p, "expected %s, got the end of the tag", wanted);
    case T_NAME:
    case T_STRING:
        return parser_fail(p, "expected %s, got '%.*s'", wanted, len, t->s);
    case T_OP:
        if (t->op > 0xff)
            return parser_fail(p, "expected %s, got '%c%c'", wanted, t->op >> 8, t->op & 0xff);
        return parser_fail(p, "expected %s, got '%c'", wanted, t->op);
    default:
        return parser_fail(p, "expected %s, got something else", wanted);
    }
}

/* Counts one more level of nesting. The parser recurses only where the source nests, so this bounds
 * its stack. */
int parser_enter(struct parser *p) {
    if (++p->depth > TEMPLATE_DEPTH)
        return parser_fail(p, "expressions or blocks are nested too deep");
    return 0;
}

struct node *parser_node(struct parser *p, uint8_t type, uint32_t line) {
    struct node *n = arena_alloc(&p->t->arena, sizeof(*n));

    assert(p->depth <= TEMPLATE_DEPTH);
    if (!n) {
        parser_fail(p, "the template needs too much memory");
        return NULL;
    }
    n->type = type;
    n->line = line;
    return n;
}

int parser_raise(struct parser *p, struct node *n, const struct node *child) {
    if (child && child->height >= n->height)
        n->height = (uint16_t)(child->height + 1);
    if (n->height > AST_HEIGHT_MAX)
        return parser_fail(p, "the expression is too long");
    return 0;
}

const struct tstr *parser_string(struct parser *p, const char *s, size_t len) {
    struct tstr *str = arena_alloc(&p->t->arena, sizeof(*str));

    if (!str) {
        parser_fail(p, "the template needs too much memory");
        return NULL;
    }
    *str = (struct tstr){.data = s, .len = len};
    return str;
}

/* Returns the bucket of a name, by FNV-1a. No seed is needed: the template comes from the operator,
 * so no client can choose names that collide. */
static struct symbol **bucket(const struct template *t, const char *s, size_t len) {
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return (struct symbol **)&t->buckets[h % SYMBOL_BUCKETS];
}

/* Records that variables with a meaning of their own are read. */
static void note_read(struct parser *p, uint32_t sym) {
    p->loop_reads += sym == p->t->sym_loop;
    if (sym == p->t->sym_caller)
        p->macro_reads |= MACRO_CALLER;
    if (sym == p->t->sym_varargs)
        p->macro_reads |= MACRO_VARARGS;
    if (sym == p->t->sym_kwargs)
        p->macro_reads |= MACRO_KWARGS;
}

int parser_symbol(struct parser *p, const struct tstr *name, bool read, uint32_t *number) {
    struct template *t = p->t;
    struct symbol **head = bucket(t, name->data, name->len), *s = *head;

    while (s && !tstr_equal(s->name, name))
        s = s->next;
    if (!s) {
        if (t->n_symbols == t->cap_symbols) {
            uint32_t cap = t->cap_symbols ? t->cap_symbols * 2 : 64;
            struct symbol **v = arena_alloc_array(&t->arena, cap, sizeof(*v));

            if (!v)
                return parser_fail(p, "the template needs too much memory");
            if (t->n_symbols)
                memcpy(v, t->symbols, t->n_symbols * sizeof(*v));
            t->symbols = v;
            t->cap_symbols = cap;
        }
        s = arena_alloc(&t->arena, sizeof(*s));
        if (!s)
            return parser_fail(p, "the template needs too much memory");
        *s = (struct symbol){.name = name, .next = *head, .number = t->n_symbols};
        *head = s;
        t->symbols[t->n_symbols++] = s;
    }
    assert(s->number < t->n_symbols && t->symbols[s->number] == s);
    s->read |= read;
    if (read)
        note_read(p, s->number);
    *number = s->number;
    return 0;
}

bool template_uses(const struct template *t, const char *name) {
    struct tstr key = {.data = name, .len = strlen(name)};
    const struct symbol *s = *bucket(t, key.data, key.len);

    while (s && !tstr_equal(s->name, &key))
        s = s->next;
    return s && s->read;
}

bool parser_is_op(const struct parser *p, uint16_t op) {
    return p->tok->type == T_OP && p->tok->op == op;
}

bool parser_is_name(const struct parser *p, const char *name) {
    return p->tok->type == T_NAME && strlen(name) == p->tok->len &&
           memcmp(p->tok->s, name, p->tok->len) == 0;
}

bool parser_skip_op(struct parser *p, uint16_t op) {
    bool is = parser_is_op(p, op);

    p->tok += is;
    return is;
}

bool parser_skip_name(struct parser *p, const char *name) {
    bool is = parser_is_name(p, name);

    p->tok += is;
    return is;
}

int parser_expect_op(struct parser *p, uint16_t op) {
    char wanted[8];

    if (parser_skip_op(p, op))
        return 0;
    snprintf(wanted, sizeof(wanted), "'%c'", op);
    return parser_unexpected(p, wanted);
}

int parser_expect_name(struct parser *p, const struct tstr **name) {
    if (p->tok->type != T_NAME)
        return parser_unexpected(p, "a name");
    *name = parser_string(p, p->tok->s, p->tok->len);
    p->tok++;
    if (!*name)
        return -EINVAL;
    return 0;
}

static int parse_body(struct parser *p, const char *const *ends, struct node **out);

static int end_tag(struct parser *p) {
    if (p->tok->type != T_BLOCK_END)
        return parser_unexpected(p, "the end of the tag");
    p->tok++;
    return 0;
}

/* Parses the body of a block: the source behind the tag up to one of @ends (NULL-terminated), whose
 * name is then the current token. */
static int parse_block(struct parser *p, const char *const *ends, struct node **out) {
    if (end_tag(p) || parse_body(p, ends, out))
        return -EINVAL;
    return 0;
}

#define ENDS(...)                                                                                  \
    (const char *const[]) {                                                                        \
        __VA_ARGS__, NULL                                                                          \
    }

/* Parses a branch of `if`. Filters and tests in it may be unknown, since it may never be taken. */
static int parse_if(struct parser *p, struct node *n) {
    p->conditional++;
    for (;;) {
        n->type = N_IF;
        TRY(parse_expr(p, PARSE_TUPLE | PARSE_NO_COND, &n->branch.test));
        TRY(parse_block(p, ENDS("elif", "else", "endif"), &n->branch.body));
        if (!parser_is_name(p, "elif"))
            break;
        n->branch.elif = parser_node(p, N_IF, p->tok++->line);
        n = n->branch.elif;
        if (!n)
            return -EINVAL;
    }
    if (parser_skip_name(p, "else") && parse_block(p, ENDS("endif"), &n->branch.orelse))
        return -EINVAL;
    p->conditional--;
    p->tok++;
    return 0;
}

static bool target_has(const struct node *target, uint32_t sym) {
    if (target->type == N_NAME)
        return target->name.sym == sym;
    for (const struct node *t = target->list.first; target->type == N_TUPLE && t; t = t->next) {
        if (target_has(t, sym))
            return true;
    }
    return false;
}

/* Returns whether @e, in the body of a loop with @target, has the same value in each turn as long
 * as nothing is done between: it reads neither the target nor `loop`, and evaluating it changes
 * nothing (a call may, and `in` uses up a generator). */
static bool is_invariant(const struct parser *p, const struct node *e, const struct node *target) {
    switch (e->type) {
    case N_CONST:
        return true;
    case N_NAME:
        return e->name.sym != p->t->sym_loop && !target_has(target, e->name.sym);
    case N_ATTR:
        return is_invariant(p, e->attr.obj, target);
    case N_NOT:
        return is_invariant(p, e->sub.a, target);
    case N_ITEM:
    case N_AND:
    case N_OR:
        return is_invariant(p, e->sub.a, target) && is_invariant(p, e->sub.b, target);
    case N_TEST:
        return !e->call.args.n_pos && !e->call.args.n_kw && !e->call.args.star &&
               !e->call.args.star_star && is_invariant(p, e->call.obj, target);
    case N_COMPARE:
        if (!is_invariant(p, e->list.first, target))
            return false;
        for (const struct node *m = e->list.first->next; m; m = m->next) {
            if (m->op == CMP_IN || m->op == CMP_NOT_IN || !is_invariant(p, m->sub.a, target))
                return false;
        }
        return true;
    default:
        return false;
    }
}

/* Marks the invariant tests of a loop's body, if it is a single `if`. */
static void mark_invariant(const struct parser *p, struct node *n) {
    struct node *body = n->loop.body;

    if (!body || body->next || body->type != N_IF)
        return;
    for (struct node *b = body; b; b = b->branch.elif)
        b->branch.invariant = is_invariant(p, b->branch.test, n->loop.target);
    n->loop.settles = body->branch.invariant;
}

/* Parses `for x in a if b`. The iterable ends before the `if`, which is the loop's condition. */
static int parse_for(struct parser *p, struct node *n) {
    n->type = N_FOR;
    TRY(parse_target(p, false, &n->loop.target));
    if (n->loop.target->type == N_NAME && tstr_is(n->loop.target->name.name, "loop"))
        return parser_fail(p, "cannot assign to 'loop' as the target of a loop");
    if (!parser_skip_name(p, "in"))
        return parser_unexpected(p, "'in'");
    TRY(parse_expr(p, PARSE_TUPLE | PARSE_NO_COND, &n->loop.iter));
    if (parser_skip_name(p, "if") && parse_expr(p, 0, &n->loop.test))
        return -EINVAL;
    n->loop.recursive = parser_skip_name(p, "recursive");
    uint32_t reads = p->loop_reads;

    p->loops++;
    TRY(parse_block(p, ENDS("else", "endfor"), &n->loop.body));
    p->loops--;
    n->loop.named = p->loop_reads > reads;
    mark_invariant(p, n);
    if (parser_skip_name(p, "else") && parse_block(p, ENDS("endfor"), &n->loop.orelse))
        return -EINVAL;
    p->tok++;
    return 0;
}

/* Parses `set`: with `=` a value follows, without it a block, perhaps with a filter. */
static int parse_set(struct parser *p, struct node *n) {
    n->type = N_SET;
    TRY(parse_target(p, true, &n->set.target));
    if (parser_skip_op(p, '='))
        return parse_expr(p, PARSE_TUPLE, &n->set.value);
    n->type = N_SET_BLOCK;
    TRY(parse_filters(p, NULL, false, &n->set.filter));
    TRY(parse_block(p, ENDS("endset"), &n->set.body));
    p->tok++;
    return 0;
}

static int parse_params(struct parser *p, struct macro *m) {
    struct param **end = &m->params;

    if (parser_expect_op(p, '('))
        return -EINVAL;
    while (!parser_skip_op(p, ')')) {
        if (m->n_params && parser_expect_op(p, ','))
            return -EINVAL;
        if (m->n_params && parser_skip_op(p, ')'))
            break;
        struct param *q = arena_alloc(&p->t->arena, sizeof(*q));

        if (!q)
            return parser_fail(p, "the template needs too much memory");
        if (parser_expect_name(p, &q->name) || parser_symbol(p, q->name, false, &q->sym))
            return -EINVAL;
        if (parser_skip_op(p, '=')) {
            TRY(parse_expr(p, 0, &q->def));
        } else if (m->n_params && end != &m->params && CONTAINER_OF(end, struct param, next)->def) {
            return parser_fail(p, "a parameter without a default follows one with a default");
        }
        *end = q;
        end = &q->next;
        m->n_params++;
    }
    return 0;
}

/* Parses the body of a macro up to the tag @end. */
static int parse_macro_body(struct parser *p, struct macro *m, const char *end) {
    uint32_t loops = p->loops, reads = p->macro_reads;

    p->loops = p->macro_reads = 0;
    TRY(parse_block(p, ENDS(end), &m->body));
    m->reads = p->macro_reads;
    p->macro_reads |= reads;
    p->loops = loops;
    p->tok++;
    return 0;
}

/* Parses a macro. A break inside it needs a loop inside it, since loops around it do not count. */
static int parse_macro(struct parser *p, struct node *n) {
    struct macro *m = arena_alloc(&p->t->arena, sizeof(*m));

    if (!m)
        return parser_fail(p, "the template needs too much memory");
    n->type = N_MACRO;
    n->macro.def = m;
    if (parser_expect_name(p, &m->name) || parser_symbol(p, m->name, false, &m->sym) ||
        parse_params(p, m))
        return -EINVAL;
    return parse_macro_body(p, m, "endmacro");
}

/* Parses `call(a, b) f(c)`: the body is a macro that f can call as caller(). */
static int parse_call_block(struct parser *p, struct node *n) {
    struct macro *m = arena_alloc(&p->t->arena, sizeof(*m));

    if (!m)
        return parser_fail(p, "the template needs too much memory");
    n->type = N_CALL_BLOCK;
    n->macro.def = m;
    m->name = TSTR_STATIC("caller");
    if (parser_symbol(p, m->name, false, &m->sym) || (parser_is_op(p, '(') && parse_params(p, m)) ||
        parse_expr(p, 0, &n->macro.call))
        return -EINVAL;
    if (n->macro.call->type != N_CALL)
        return parser_fail(p, "expected call");
    return parse_macro_body(p, m, "endcall");
}

/* Parses `with a = 1, b = 2`. */
static int parse_with(struct parser *p, struct node *n) {
    struct node **target = &n->set.target, **value = &n->set.value;

    n->type = N_WITH;
    while (p->tok->type != T_BLOCK_END) {
        if (n->set.target && parser_expect_op(p, ','))
            return -EINVAL;
        if (parse_target(p, false, target) || parser_expect_op(p, '=') || parse_expr(p, 0, value))
            return -EINVAL;
        target = &(*target)->next;
        value = &(*value)->next;
    }
    TRY(parse_block(p, ENDS("endwith"), &n->set.body));
    p->tok++;
    return 0;
}

/* Parses a block. Nothing can extend a template, so its body is rendered in its place. With
 * `scoped` it sees the variables around it. */
static int parse_named_block(struct parser *p, struct node *n) {
    const struct tstr *name, *again;

    uint32_t number;

    n->type = N_BLOCK;
    TRY(parser_expect_name(p, &name));
    TRY(parser_symbol(p, name, false, &number));
    if (p->t->symbols[number]->block)
        return parser_fail(p, "block '%.*s' defined twice", (int)MIN(name->len, (size_t)80),
                           name->data);
    p->t->symbols[number]->block = true;
    if (parser_skip_name(p, "scoped"))
        n->type = N_SCOPE;
    if (parser_is_name(p, "required"))
        return parser_fail(p, "a required block has no body");
    TRY(parse_block(p, ENDS("endblock"), &n->set.body));
    p->tok++;
    if (p->tok->type != T_NAME)
        return 0;
    TRY(parser_expect_name(p, &again));
    if (!tstr_equal(name, again))
        return parser_fail(p, "the block ends with another name");
    return 0;
}

static int parse_autoescape(struct parser *p, struct node *n) {
    n->type = N_AUTOESCAPE;
    TRY(parse_expr(p, 0, &n->set.value));
    TRY(parse_block(p, ENDS("endautoescape"), &n->set.body));
    p->tok++;
    return 0;
}

static int parse_filter_block(struct parser *p, struct node *n) {
    n->type = N_FILTER_BLOCK;
    TRY(parse_filters(p, NULL, true, &n->set.filter));
    TRY(parse_block(p, ENDS("endfilter"), &n->set.body));
    p->tok++;
    return 0;
}

/* Parses `generation`, which marks text for a training mask; rendering only renders its body. */
static int parse_generation(struct parser *p, struct node *n) {
    n->type = N_SCOPE;
    TRY(parse_block(p, ENDS("endgeneration"), &n->set.body));
    p->tok++;
    return 0;
}

static int parse_break(struct parser *p, struct node *n) {
    n->type = N_BREAK;
    if (!p->loops)
        return parser_fail(p, "'break' outside of a loop");
    return 0;
}

static int parse_continue(struct parser *p, struct node *n) {
    n->type = N_CONTINUE;
    if (!p->loops)
        return parser_fail(p, "'continue' outside of a loop");
    return 0;
}

static const struct {
    const char *name;
    int (*parse)(struct parser *p, struct node *n);
} STATEMENTS[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"filter", parse_filter_block},
    {"call", parse_call_block},
    {"with", parse_with},
    {"block", parse_named_block},
    {"autoescape", parse_autoescape},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
};

/* Parses a statement behind `{%`. */
static int parse_statement(struct parser *p, struct node **out) {
    struct node *n = parser_node(p, N_TEXT, p->tok->line);

    if (!n || parser_enter(p))
        return -EINVAL;
    *out = n;
    for (size_t i = 0; i < ARRAY_SIZE(STATEMENTS); i++) {
        if (parser_skip_name(p, STATEMENTS[i].name)) {
            if (STATEMENTS[i].parse(p, n))
                return -EINVAL;
            p->depth--;
            return end_tag(p);
        }
    }
    if (p->tok->type == T_NAME)
        return parser_fail(p, "unknown tag '%.*s'", (int)MIN(p->tok->len, (size_t)40), p->tok->s);
    return parser_unexpected(p, "the name of a tag");
}

static bool parser_at_end(const struct parser *p, const char *const *ends) {
    for (; ends && *ends; ends++) {
        if (parser_is_name(p, *ends))
            return true;
    }
    return false;
}

static int parse_print(struct parser *p, struct node **out) {
    struct node *n = parser_node(p, N_OUTPUT, p->tok->line);

    if (!n || parse_expr(p, PARSE_TUPLE, &n->sub.a))
        return -EINVAL;
    if (p->tok->type != T_PRINT_END)
        return parser_unexpected(p, "the end of the tag");
    p->tok++;
    *out = n;
    return 0;
}

static int parse_text(struct parser *p, struct node **out) {
    struct node *n = parser_node(p, N_TEXT, p->tok->line);
    const struct tstr *s = n ? parser_string(p, p->tok->s, p->tok->len) : NULL;

    if (!s)
        return -EINVAL;
    n->constant = value_str(s);
    p->tok++;
    *out = n;
    return 0;
}

/* Parses text, expressions and statements up to one of @ends; NULL: the whole template. The last
 * token is T_END, so the parser never reads beyond it. */
static int parse_body(struct parser *p, const char *const *ends, struct node **out) {
    uint32_t begin = p->tok->line;

    for (;; out = &(*out)->next) {
        int r;

        switch (p->tok->type) {
        case T_TEXT:
            r = parse_text(p, out);
            break;
        case T_PRINT_BEGIN:
            p->tok++;
            r = parse_print(p, out);
            break;
        case T_BLOCK_BEGIN:
            p->tok++;
            if (parser_at_end(p, ends))
                return 0;
            r = parse_statement(p, out);
            break;
        default:
            if (!ends)
                return 0;
            return parser_fail(p, "the block that begins at line %u is not closed", begin);
        }
        if (r)
            return r;
    }
}

/* Enters the names that the renderer sets itself. */
static int parser_own_symbols(struct parser *p) {
    struct template *t = p->t;

    TRY(parser_symbol(p, TSTR_STATIC("loop"), false, &t->sym_loop));
    TRY(parser_symbol(p, TSTR_STATIC("caller"), false, &t->sym_caller));
    TRY(parser_symbol(p, TSTR_STATIC("varargs"), false, &t->sym_varargs));
    return parser_symbol(p, TSTR_STATIC("kwargs"), false, &t->sym_kwargs);
}

static int parser_read(struct parser *p) {
    TRY(parser_own_symbols(p));
    return parse_body(p, NULL, &p->t->body);
}

int parser_parse(struct template *t, const char *source, size_t len, struct err *err) {
    struct token_list tokens;
    struct parser p = {.t = t, .err = err};

    TRY(lexer_run(source, len, &t->arena, &tokens, err));
    p.tok = tokens.t;
    int r = parser_read(&p);
    if (!r && p.unknown)
        r = lexer_fail(err, p.unknown->line, "no %s named '%.*s'",
                       p.unknown->type == N_FILTER ? "filter" : "test",
                       (int)p.unknown->call.name->len, p.unknown->call.name->data);
    /* Asserts that nesting is balanced and all tokens were read. */
    assert(r || (p.depth == 0 && p.loops == 0 && p.conditional == 0));
    assert(r || p.tok->type == T_END);
    free(tokens.t);
    return r;
}
