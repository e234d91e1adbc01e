#pragma once

/*
 * render - evaluation of a parsed template: variables, scopes, calls, built-ins, formatting.
 */

#include "base/lib_types.h"
#include "text/template/ast.h"
#include "text/template/budget.h"
#include "text/template/value.h"

struct binding {
    uint32_t sym;
    struct value v;
};

/* Values of names. Scopes are searched from the innermost one outwards; n <= cap. */
struct scope {
    /* the scope around it; of a free scope the next one */
    struct scope *up;
    struct binding *b;
    /* bit sym % 64 is set for every name that is bound here */
    uint64_t mask;
    uint32_t n, cap;
    /* a macro refers to it, so it must not be reused */
    bool kept;
};

/* A macro and the scopes in which it was made, which stay alive. */
struct macro_value {
    const struct macro *def;
    struct scope *closure;
};

/* A method, bound to the object from which it was read. */
struct method_value {
    const struct builtin *fn;
    struct value self;
};

/* An argument passed by name. */
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

/* Arguments of a built-in: @a has them in the order of its parameters, V_MISSING for one that was
 * not given. */
struct call {
    struct value self;
    /* builtin.how */
    int how;
    struct value a[CALL_ARGS_MAX];
    /* arguments as written, for parameters "*" */
    const struct args *args;
};

/* A filter, a test, a method or a global function. */
struct builtin {
    const char *name;
    /* names separated by spaces; "*": any arguments */
    const char *params;
    /* number of required arguments */
    uint8_t required;
    int (*fn)(struct render *rd, const struct call *c, struct value *out);
    /* variant of `fn` */
    int how;
    /* 0, or one of the enum below */
    int memory;
};

/* Uses of memory by a filter: its result is a sequence that nothing else refers to; or its result
 * does not refer to its operand. */
enum { BUILTIN_MAKES_SEQ = 1, BUILTIN_READS_SEQ };

/* Fails with the template's own message, for raise_exception(). */
int render_fail_exact(struct render *rd, const struct tstr *message);
/* Converts @j to a value that borrows its strings; @user: they are marked as a user's. */
int render_from_json(struct render *rd, yyjson_val *j, bool user, struct value *out);

/* Return conventions of the functions below: 0, or a negative value with the render's error set,
 * unless a contract says otherwise; *out is written on success only. */

/* eval.c, eval_expr.c. The functions return a positive enum flow if a loop's body ends early. */
enum flow { FLOW_NEXT = 0, FLOW_BREAK = 1, FLOW_CONTINUE = 2 };
/* Runs the statements from @n on; their text goes to rd->out. Returns an enum flow. */
int eval_block(struct render *rd, const struct node *n);
/* Evaluates expression @n in the innermost scope. */
int eval_expr(struct render *rd, const struct node *n, struct value *out);
/* Evaluates the call @n. @caller: NULL, or the value of its argument `caller`. */
int eval_call(struct render *rd, const struct node *n, const struct value *caller,
              struct value *out);
/* Calls a recursive loop with the value @over. */
int eval_loop_again(struct render *rd, const struct loop *loop, struct value over,
                    struct value *out);
/* Begins a call of a macro, whose end decrements macro_depth. */
int render_enter_macro(struct render *rd);
/* Runs @body in its own scope and returns its text in *out. Returns an enum flow. */
int eval_capture(struct render *rd, const struct node *body, struct value *out);
/* Binds @sym in @s itself, never in a scope around it. */
int scope_set(struct render *rd, struct scope *s, uint32_t sym, struct value v);
struct scope *scope_new(struct render *rd, struct scope *up); /* returns NULL after a failure */
/* Ends @s (may be NULL), which is used again unless a macro refers to it. */
void scope_end(struct render *rd, struct scope *s);
/* Returns the binding of @sym in @s itself, or NULL. */
struct binding *scope_find(const struct scope *s, uint32_t sym);

/*
 * operators.c: Python's operators on values. @op: enum binary_op, enum comparison. Arithmetic with
 * an undefined value is an error that names it.
 */

/* Computes @a @op @b, including + of strings and lists, and * of these with a number. */
int operator_binary(struct render *rd, uint8_t op, struct value a, struct value b,
                    struct value *out);
/* Compares two values; also does `in` and `not in`, which search @b. */
int operator_compare(struct render *rd, uint8_t op, struct value a, struct value b, bool *out);
/* Evaluate obj[key] and obj.name. A missing item is an undefined value and not a failure. A dot
 * searches methods and fields first, brackets search items first. */
int operator_item(struct render *rd, struct value obj, struct value key, struct value *out);
int operator_attr(struct render *rd, struct value obj, const struct tstr *name, struct value *out);
/* Evaluates obj[bound[0]:bound[1]:bound[2]] of a string, list or tuple; a missing bound is None. */
int operator_slice(struct render *rd, struct value obj, const struct value bound[3],
                   struct value *out);

/* call.c: call functions, macros and methods; @kind is the word for messages. A function gets its
 * arguments in the order of its parameters. Too many, unknown and missing arguments are errors, and
 * so is an unknown filter or test (@b NULL). */
int call_value(struct render *rd, struct value fn, const struct args *args, struct value *out);
int call_builtin(struct render *rd, const struct builtin *b, const char *kind, struct value self,
                 const struct args *args, struct value *out);
int call_named(struct render *rd, const char *kind, const struct builtin *b,
               const struct tstr *name, struct value self, const struct args *args,
               struct value *out);

/* Adds to @d the entries of a dict or of pairs, and keywords, as dict() takes them. */
int dict_fill(struct render *rd, struct dict *d, const struct args *args);

/* Searches a table that is sorted by name; NULL: there is no such name. */
const struct builtin *builtin_find(const struct builtin *table, size_t n, const struct tstr *name);
const struct builtin *filter_find(const struct tstr *name);
const struct builtin *test_find(const struct tstr *name);
const struct builtin *global_find(const struct tstr *name);
const struct builtin *method_find(struct value self, const struct tstr *name);
bool method_exists(const struct tstr *name); /* values of some type have a method @name */
const struct builtin *method_find_str(const struct tstr *name);

/* format.c, tojson.c */
int format_str(struct render *rd, struct sink *k, struct value v);  /* str() */
int format_repr(struct render *rd, struct sink *k, struct value v); /* repr() */
/* Returns str(v) as a string in *out; @v itself if it is a string. */
int format_to_str(struct render *rd, struct value v, const struct tstr **out);
#define FLOAT_STEPS 10 /* evaluation steps that are charged for formatting a float */
/* Writes repr() of a float: the shortest digits that read back as @d, with ".0" or an exponent. */
void format_double(double d, char out[40]);
/* Writes format(v, spec). */
int format_spec(struct render *rd, struct sink *k, struct value v, const struct tstr *spec);
/* Computes s % values. */
int format_percent(struct render *rd, const struct tstr *s, struct value values, struct value *out);
/* Computes fmt.format(args). */
int format_braces(struct render *rd, const struct tstr *fmt, const struct args *args,
                  struct value *out);
int tojson(struct render *rd, const struct call *c, struct value *out);
