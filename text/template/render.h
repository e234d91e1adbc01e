#pragma once

/*
 * render - evaluation of a parsed template: variables, scopes, calls, built-ins, formatting.
 */

#include <yyjson.h>
#include "base/json_value.h"
#include "text/template/ast.h"
#include "text/template/budget.h"
#include "text/template/value.h"

/* The values of names. A scope is looked through from the last one made outwards; n <= cap. */
struct binding {
    uint32_t sym;
    struct value v;
};

struct scope {
    struct scope *up;
    struct binding *b;
    uint32_t n, cap;
    bool kept; /* a macro remembers it: not to be reused */
};

/* A macro and the scopes in which it was made, which stay alive. */
struct macro_value {
    const struct macro *def;
    struct scope *closure;
};

/* A method with the object that it was taken of. */
struct method_value {
    const struct builtin *fn;
    struct value self;
};

/* An argument that was given by name. */
struct named_value {
    const struct tstr *name;
    struct value v;
};

/* The arguments of a call as evaluated, `*` and `**` spread. */
struct args {
    struct value *pos;
    uint32_t n_pos;
    struct named_value *kw;
    uint32_t n_kw;
};

#define CALL_ARGS_MAX 6

/* Carries the arguments of a built-in: @a holds them in the order of its parameters, V_MISSING if
 * not given. */
struct call {
    struct value self;
    int how; /* the builtin's */
    struct value a[CALL_ARGS_MAX];
    const struct args *args; /* the arguments as written, for parameters "*" */
};

/* A filter, a test, a method or a global function. */
struct builtin {
    const char *name;
    const char *params; /* names with a space between; "*": anything */
    uint8_t required;   /* number of required arguments */
    int (*fn)(struct render *rd, const struct call *c, struct value *out);
    int how; /* variant of @fn */
};

/* raise_exception(@message): fails with the template's own words. */
int render_fail_exact(struct render *rd, const struct tstr *message);
/* The value of @j, whose strings it borrows; @user: they are marked as a user's. */
int render_from_json(struct render *rd, yyjson_val *j, bool user, struct value *out);

/* Return conventions of the functions below: 0, or a negative value with the render's error set,
 * unless a contract says otherwise; *out is written on success only. */

/* eval.c, eval_expr.c. A loop's body may end early: that is a positive answer, enum flow. */
enum flow { FLOW_NEXT = 0, FLOW_BREAK = 1, FLOW_CONTINUE = 2 };
/* Runs the statements from @n on; their text goes to rd->out. Answers an enum flow. */
int eval_block(struct render *rd, const struct node *n);
/* The value of expression @n, in the innermost scope. */
int eval_expr(struct render *rd, const struct node *n, struct value *out);
/* The text that @body writes, in a scope of its own. Answers an enum flow. */
int eval_capture(struct render *rd, const struct node *body, struct value *out);
/* Binds @sym in @s itself, never in a scope around it. */
int scope_set(struct render *rd, struct scope *s, uint32_t sym, struct value v);
struct scope *scope_new(struct render *rd, struct scope *up); /* NULL: failed */

/*
 * operators.c: Python's operators on values. @op: enum binary_op, enum comparison. Arithmetic with
 * an undefined value is an error that names it.
 */

/* @a @op @b; also + of strings and lists, * of those with a number, % of a format. */
int operator_binary(struct render *rd, uint8_t op, struct value a, struct value b,
                    struct value *out);
/* Compares two values; also does `in` and `not in`, which search @b. */
int operator_compare(struct render *rd, uint8_t op, struct value a, struct value b, bool *out);
/* obj[key] and obj.name: what is not there is an undefined value, no failure. A method or a field
 * comes first for a dot, an item for brackets. */
int operator_item(struct render *rd, struct value obj, struct value key, struct value *out);
int operator_attr(struct render *rd, struct value obj, const struct tstr *name, struct value *out);
/* obj[bound[0]:bound[1]:bound[2]] of a string, list or tuple; a bound that is not given is None. */
int operator_slice(struct render *rd, struct value obj, const struct value bound[3],
                   struct value *out);

/* call.c: calls of functions, macros and methods; @kind is the word for messages. A function gets
 * its arguments in the order of its parameters; too many, unknown and missing ones are errors, also
 * a name that no filter or test has. */
int call_value(struct render *rd, struct value fn, const struct args *args, struct value *out);
int call_builtin(struct render *rd, const struct builtin *b, const char *kind, struct value self,
                 const struct args *args, struct value *out);
int call_filter(struct render *rd, const struct tstr *name, struct value self,
                const struct args *args, struct value *out);
int call_test(struct render *rd, const struct tstr *name, struct value self,
              const struct args *args, bool *out);

/* Tables sorted by name; NULL: there is none of that name. */
const struct builtin *builtin_find(const struct builtin *table, size_t n, const struct tstr *name);
const struct builtin *filter_find(const struct tstr *name);
const struct builtin *test_find(const struct tstr *name);
const struct builtin *global_find(const struct tstr *name);
const struct builtin *method_find(struct value self, const struct tstr *name);
const struct builtin *method_find_str(const struct tstr *name);

/* format.c, tojson.c */
int format_str(struct render *rd, struct sink *k, struct value v);  /* str() */
int format_repr(struct render *rd, struct sink *k, struct value v); /* repr() */
/* str(v) as a string; @v itself when it is one. */
int format_to_str(struct render *rd, struct value v, const struct tstr **out);
#define FLOAT_STEPS 10 /* steps that writing a float costs */
/* repr() of a float: the shortest digits that read back as @d, with ".0" or an exponent. */
void format_double(double d, char out[40]);
/* fmt.format(args). */
int format_braces(struct render *rd, const struct tstr *fmt, const struct args *args,
                  struct value *out);
int tojson(struct render *rd, const struct call *c, struct value *out);
