#pragma once

/*
 * parser - makes a tree of nodes from tokens. parser.c has the statements, parse_expr.c the
 * expressions; both stop at the first error, whose message names its line.
 */

#include "text/template.h"
#include "text/template/ast.h"
#include "text/template/lexer.h"

/* State of the parser. At the end of the template, depth, loops and conditional are 0 again. */
struct parser {
    struct template *t;
    /* current token; the last one is T_END */
    const struct token *tok;
    struct err *err;
    /* nesting of expressions and blocks */
    uint32_t depth;
    /* number of loops around this place, inside the macro */
    uint32_t loops;
    /* number of places so far that read the variable `loop` */
    uint32_t loop_reads;
    /* MACRO_ variables that were read since the macro's begin */
    uint32_t macro_reads;
    /* number of enclosing `if`s: unknown filters and tests fail only when they are evaluated */
    uint32_t conditional;
    /* first unknown filter or test outside of them that no conditional expression excuses, or
     * NULL */
    const struct node *unknown;
};

/*
 * Functions return 0, or a negative errno with *err set: a message with the line of the current
 * token. Functions that return a pointer return NULL in that case. is_ tests the current token,
 * skip_ consumes it if it matches, expect_ fails if it does not match.
 */

/* fails with the current line */
int parser_fail(struct parser *p, const char *fmt, ...) PRINTF(2, 3);
/* fails with "expected X, got Y" */
int parser_unexpected(struct parser *p, const char *wanted);
int parser_enter(struct parser *p); /* adds one level; the caller
                                                                       * decrements depth */
/* Returns a new node in the template's arena; other members are zero. */
struct node *parser_node(struct parser *p, uint8_t type, uint32_t line);
/* Raises the height of @n above that of @child (may be NULL). */
int parser_raise(struct parser *p, struct node *n, const struct node *child);
/* Returns a string in the template's arena; its bytes are borrowed. */
const struct tstr *parser_string(struct parser *p, const char *s, size_t len);
/* Finds the number of variable @name; @read: it is looked up among the request's variables. */
int parser_symbol(struct parser *p, const struct tstr *name, bool read, uint32_t *number);

/* Test, skip or expect the current token; @op as LEX2() builds it. */
bool parser_is_op(const struct parser *p, uint16_t op);
bool parser_is_name(const struct parser *p, const char *name);
bool parser_skip_op(struct parser *p, uint16_t op);
bool parser_skip_name(struct parser *p, const char *name);
int parser_expect_op(struct parser *p, uint16_t op);
int parser_expect_name(struct parser *p, const struct tstr **name); /* expects any name */

/* Ways to read an expression. */
enum {
    /* several expressions with commas are a tuple */
    PARSE_TUPLE = 1,
    /* a following `if` is not part of the expression */
    PARSE_NO_COND = 2,
};
/* Parses an expression up to the first token that cannot continue it. @how: flags from the enum
 * above. */
int parse_expr(struct parser *p, unsigned how, struct node **out);
/* Parses a target: a name, a namespace attribute (if @attr), or a tuple of targets. */
int parse_target(struct parser *p, bool attr, struct node **out);
/* Parses `a | b(c)`: the filters after @obj (NULL: of a block). @first: the first name comes
 * without a bar. */
int parse_filters(struct parser *p, struct node *obj, bool first, struct node **out);
