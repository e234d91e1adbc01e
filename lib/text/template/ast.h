#pragma once

/*
 * ast - a parsed template. Nodes live in the template's arena and never change after parsing.
 * Statements and list members are chained through `next`.
 */

#include "base/arena.h"
#include "base/err.h"
#include "text/template/value.h"

#define TEMPLATE_SOURCE_MAX (1u << 20) /* most bytes of a source */
#define AST_HEIGHT_MAX 400u /* most levels of one expression; a chain of operators is a deep tree */

enum node_type {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT, /* list: key, value, key, value ... */
    N_ATTR,
    N_ITEM,
    N_SLICE, /* a: object, b c d: bounds or NULL */
    N_CALL,
    N_FILTER, /* call.obj NULL: the operand is the text of the block */
    N_TEST,
    N_BINARY,
    N_CONCAT,
    N_COMPARE, /* list: operands; op of each but the first is its comparison */
    N_AND,
    N_OR,
    N_NOT,
    N_NEG,
    N_POS,
    N_COND,
    /* statements */
    N_TEXT,
    N_OUTPUT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_SET_ATTR, /* namespace attribute as a target */
    N_MACRO,
    N_FILTER_BLOCK,
    N_SCOPE,      /* statement `generation` */
    N_WITH,       /* set.target, set.value: chains of the same length */
    N_CALL_BLOCK, /* macro.def: the macro caller(); macro.call: the call */
    N_BLOCK,
    N_AUTOESCAPE, /* set.value: whether to escape, which must be false */
    N_BREAK,
    N_CONTINUE,
};

/* Operator of an N_BINARY (node.op). */
enum binary_op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW };
/* Comparison of the members of N_COMPARE except the first (node.op). */
enum comparison { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };

/* An argument passed by name. */
struct node_kwarg {
    const struct tstr *name;
    struct node *value;
    struct node_kwarg *next;
};

/* The arguments of a call, in the order of the source. */
struct node_args {
    struct node *pos;
    uint32_t n_pos;
    struct node_kwarg *kw;
    uint32_t n_kw;
    struct node *star, *star_star; /* *args, **kwargs, or NULL */
};

struct param {
    uint32_t sym;
    const struct tstr *name;
    struct node *def; /* default value; NULL: none */
    struct param *next;
};

/* A macro; sym is the variable to which it is bound. */
struct macro {
    const struct tstr *name;
    uint32_t sym;
    struct param *params;
    uint32_t n_params;
    uint32_t reads; /* the MACRO_ variables that the body reads */
    struct node *body;
};

/* Variables that a macro gets only if its body reads them (macro.reads). */
enum { MACRO_CALLER = 1, MACRO_VARARGS = 2, MACRO_KWARGS = 4 };

/* Node of the tree. height is greater than that of all nodes below it, at most AST_HEIGHT_MAX,
 * which bounds the C stack. */
struct node {
    uint8_t type;
    uint8_t op; /* N_BINARY, members of N_COMPARE: the operator; N_TEST: 1: negated */
    uint16_t height;
    uint32_t line;
    struct node *next;
    union {
        struct value constant; /* N_CONST, N_TEXT */
        struct {
            uint32_t sym;
            const struct tstr *name;
        } name;
        struct {
            struct node *a, *b, *c, *d;
        } sub;
        struct {
            struct node *first;
            uint32_t n;
        } list;
        struct {
            struct node *obj;
            const struct tstr *name;
            bool is_method; /* values of some type have a method of this name */
        } attr;             /* shared with N_SET_ATTR, whose obj is a N_NAME */
        struct {
            struct node *obj; /* function, or value that is filtered or tested */
            const struct tstr *name;
            const struct builtin *fn; /* the filter or test; NULL: there is none */
            struct node_args args;
        } call;
        struct {
            struct node *test, *body;
            struct node *elif; /* next N_IF of the chain */
            struct node *orelse;
            bool invariant; /* in a loop's body: the test has the same value in all turns that do
                             * nothing */
        } branch;
        struct {
            struct node *target, *iter, *test, *body, *orelse;
            bool recursive;
            bool named;   /* the body reads `loop` */
            bool settles; /* the body is one `if`, whose first test is invariant */
        } loop;
        struct {
            struct node *target, *value, *body, *filter; /* value, or body and perhaps filter */
        } set;                                           /* N_WITH: target and value are chains */
        struct {
            struct macro *def;
            struct node *call;
        } macro;
    };
};

struct symbol {
    const struct tstr *name;
    struct symbol *next; /* next symbol in its bucket */
    uint32_t number;
    bool read;  /* the name is read as a variable */
    bool block; /* a block has this name */
};

#define SYMBOL_BUCKETS 4096

/* Symbol i is symbols[i], i < n_symbols, and is in the bucket of its name. Nothing changes after
 * parsing: renderings in several threads share a template. */
struct template {
    struct arena arena;
    struct node *body;
    struct symbol *buckets[SYMBOL_BUCKETS];
    struct symbol **symbols; /* symbols by number */
    uint32_t n_symbols, cap_symbols;
    uint32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
};

/* Parses (parser.c): fills @t, whose arena is initialised and which the caller frees in any case.
 * @source is copied. Returns 0, or negative with @err, which names the line. */
int parser_parse(struct template *t, const char *source, size_t len, struct err *err);
