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
    /* list: key, value, key, value ... */
    N_DICT,
    N_ATTR,
    N_ITEM,
    /* a: object, b c d: bounds or NULL */
    N_SLICE,
    N_CALL,
    /* call.obj NULL: the operand is the text of the block */
    N_FILTER,
    N_TEST,
    N_BINARY,
    N_CONCAT,
    /* list: operands; op of each but the first is its comparison */
    N_COMPARE,
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
    /* namespace attribute as a target */
    N_SET_ATTR,
    N_MACRO,
    N_FILTER_BLOCK,
    /* statement `generation` */
    N_SCOPE,
    /* set.target, set.value: chains of the same length */
    N_WITH,
    /* macro.def: the macro caller(); macro.call: the call */
    N_CALL_BLOCK,
    N_BLOCK,
    /* set.value: whether to escape, which must be false */
    N_AUTOESCAPE,
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
    /* *args, **kwargs, or NULL */
    struct node *star, *star_star;
};

struct param {
    uint32_t sym;
    const struct tstr *name;
    /* default value; NULL: none */
    struct node *def;
    struct param *next;
};

/* A macro; sym is the variable to which it is bound. */
struct macro {
    const struct tstr *name;
    uint32_t sym;
    struct param *params;
    uint32_t n_params;
    /* the MACRO_ variables that the body reads */
    uint32_t reads;
    struct node *body;
};

/* Variables that a macro gets only if its body reads them (macro.reads). */
enum { MACRO_CALLER = 1, MACRO_VARARGS = 2, MACRO_KWARGS = 4 };

/* Node of the tree. height is greater than that of all nodes below it, at most AST_HEIGHT_MAX,
 * which bounds the C stack. */
struct node {
    uint8_t type;
    /* N_BINARY, members of N_COMPARE: the operator; N_TEST: 1: negated */
    uint8_t op;
    uint16_t height;
    uint32_t line;
    struct node *next;
    union {
        /* N_CONST, N_TEXT */
        struct value constant;
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
            /* values of some type have a method of this name */
            bool is_method;
        } attr; /* shared with N_SET_ATTR, whose obj is a N_NAME */
        struct {
            /* function, or value that is filtered or tested */
            struct node *obj;
            const struct tstr *name;
            /* the filter or test; NULL: there is none */
            const struct builtin *fn;
            struct node_args args;
        } call;
        struct {
            struct node *test, *body;
            /* next N_IF of the chain */
            struct node *elif;
            struct node *orelse;
            /* in a loop's body: the test has the same value in all turns that do nothing */
            bool invariant;
        } branch;
        struct {
            struct node *target, *iter, *test, *body, *orelse;
            bool recursive;
            /* the body reads `loop` */
            bool named;
            /* the body is one `if`, whose first test is invariant */
            bool settles;
        } loop;
        struct {
            /* value, or body and perhaps filter */
            struct node *target, *value, *body, *filter;
        } set; /* N_WITH: target and value are chains */
        struct {
            struct macro *def;
            struct node *call;
        } macro;
    };
};

struct symbol {
    const struct tstr *name;
    /* next symbol in its bucket */
    struct symbol *next;
    uint32_t number;
    /* the name is read as a variable */
    bool read;
    /* a block has this name */
    bool block;
};

#define SYMBOL_BUCKETS 4096

/* Symbol i is symbols[i], i < n_symbols, and is in the bucket of its name. Nothing changes after
 * parsing: renderings in several threads share a template. */
struct template {
    struct arena arena;
    struct node *body;
    struct symbol *buckets[SYMBOL_BUCKETS];
    /* symbols by number */
    struct symbol **symbols;
    uint32_t n_symbols, cap_symbols;
    uint32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
};

/* Parses (parser.c): fills @t, whose arena is initialised and which the caller frees in any case.
 * @source is copied. Returns 0, or negative with @err, which names the line. */
int parser_parse(struct template *t, const char *source, size_t len, struct err *err);
