#pragma once

/*
 * value - the values of templates: Python's None, bool, int, float, str, list, tuple and dict as
 * far as templates can see them, the undefined value, and callables. Objects live in the arena of
 * one render; strings never change; lists, dicts and namespaces can change and are shared. Integers
 * have 64 bits (V_INT; V_UINT above INT64_MAX); a result that does not fit is an error.
 */

#include <stdbool.h>
#include <stdint.h>

#include "text/template/tstr.h"

struct render;
struct node;
struct scope;

/* holds any V_INT and V_UINT and the result of one operation on them */
__extension__ typedef __int128 wide;

enum value_type {
    /* argument that was not given */
    V_MISSING,
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_UINT,
    V_FLOAT,
    V_STR,
    V_SEQ,
    V_DICT,
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_FUNCTION,
    V_METHOD,
};

struct value {
    uint8_t type;
    /* V_UNDEFINED: type of the object that lacks the item; V_MISSING: of a plain name */
    uint8_t of;
    union {
        bool b;
        int64_t i;
        uint64_t u;
        double f;
        /* V_STR; V_UNDEFINED: the missing name, or NULL */
        const struct tstr *s;
        struct seq *seq;
        /* V_DICT, V_NAMESPACE */
        struct dict *dict;
        struct loop *loop;
        const struct macro_value *macro;
        const struct builtin *fn;
        const struct method_value *method;
    };
};

/* Python type of a sequence, which determines its name, its operations and its text form. */
enum seq_kind { SEQ_LIST, SEQ_TUPLE, SEQ_RANGE, SEQ_GENERATOR, SEQ_KEYS, SEQ_VALUES, SEQ_ITEMS };

/* A sequence of elements v[0, n); n <= cap. A list may grow while it is iterated: the iteration
 * keeps the old v. A range has n elements, which seq_at() computes, and v[3] are its start, stop
 * and step. */
struct seq {
    struct value *v;
    uint32_t n, cap;
    uint8_t kind;
    /* a pair of groupby(), with the attributes grouper and list */
    bool group;
    /* the whole value comes from a variable of the request */
    bool user;
    /* a slice has elements in the same array: they must not be moved */
    bool shared;
};

struct dict_entry {
    struct value key, value;
    /* valid when the dict has an index */
    uint64_t hash;
};

/* Invariants: n <= cap; no two keys are equal; with an index every entry has its hash and one slot
 * there, and n_index, a power of two, is at least twice cap: a search ends at a free slot. */
struct dict {
    /* entries in the order of insertion */
    struct dict_entry *e;
    uint32_t n, cap;
    /* open addressing, number of the entry + 1; NULL while the dict is small */
    uint32_t *index;
    uint32_t n_index;
    bool user;
};

/* A running `for`: i < n is the current item. The items were collected before the first
 * iteration; those of a range are computed. */
struct loop {
    struct value *items;
    /* NULL: the items are in `items` */
    const struct seq *range;
    uint32_t n, i;
    /* number of recursive calls around it */
    uint32_t depth;
    /* the loop was read as a value, which may outlive it */
    bool taken;
    /* last arguments of changed(), or NULL */
    struct seq *changed;
    /* of a recursive loop; NULL: it is not recursive */
    const struct node *node;
    /* of a recursive loop: the scope around it */
    struct scope *scope;
    /* next one of render.free_loops */
    struct loop *next;
};

#define VALUE_NESTING_MAX 200u /* most levels of nested lists and dicts */

/* Make values of each type; objects that they point to must live as long as the rendering. */
static inline struct value value_none(void) {
    return (struct value){.type = V_NONE};
}
static inline struct value value_bool(bool b) {
    return (struct value){.type = V_BOOL, .b = b};
}
static inline struct value value_int(int64_t i) {
    return (struct value){.type = V_INT, .i = i};
}
static inline struct value value_float(double f) {
    return (struct value){.type = V_FLOAT, .f = f};
}
static inline struct value value_str(const struct tstr *s) {
    return (struct value){.type = V_STR, .s = s};
}
static inline struct value value_seq(struct seq *s) {
    return (struct value){.type = V_SEQ, .seq = s};
}
static inline struct value value_dict(struct dict *d) {
    return (struct value){.type = V_DICT, .dict = d};
}
static inline struct value value_undefined(const struct tstr *name, uint8_t of) {
    return (struct value){.type = V_UNDEFINED, .of = of, .s = name};
}

/* Classify as Python does: a bool is an int, an int is a number. */
static inline bool value_is_int(struct value v) {
    return v.type == V_INT || v.type == V_UINT || v.type == V_BOOL;
}
static inline bool value_is_number(struct value v) {
    return value_is_int(v) || v.type == V_FLOAT;
}
static inline bool value_is_seq(struct value v, uint8_t kind) {
    return v.type == V_SEQ && v.seq->kind == kind;
}

wide value_wide(struct value v); /* @v must be a value_is_int() */
/* Sets *@out to a number that 64 bits, with or without a sign, can hold exactly. Returns false if
 * @v is another float. */
bool value_whole(struct value v, wide *out);
/* Makes a V_INT or V_UINT of @w; fails if @w needs more than 64 bits. */
int value_from_wide(struct render *rd, wide w, struct value *out);
double value_double(struct value v);         /* @v must be a value_is_number() */
const char *value_type_name(struct value v); /* returns Python's name: "str", "NoneType" */
/* Returns the truth of Python's bool(): empty, zero, None and undefined are false. */
bool value_truth(struct value v);

/* Return conventions: functions that can fail return 0 or a negative error with the render's error
 * set. */
/* Compares like Python's ==: 1, 1.0 and True are equal; values of other different types never
 * are. */
int value_equal(struct render *rd, struct value a, struct value b, bool *out);
/* Computes a < b; fails for types without an order. @op: operator for the message, because > and <=
 * are computed with a and b exchanged. */
int value_less(struct render *rd, struct value a, struct value b, const char *op, bool *out);
/* Computes `what in in`. */
int value_contains(struct render *rd, struct value in, struct value what, bool *out);
/* Collects the elements of a value that can be iterated; a generator is used up. */
int value_items(struct render *rd, struct value v, struct value **items, uint32_t *n);
/* Computes len(); for a string the number of code points. */
int value_length(struct render *rd, struct value v, int64_t *out);
/* Sets the error for an undefined value where a defined one is needed. */
int value_fail_undefined(struct render *rd, struct value v);

/* Returns element @i of a sequence or loop; @i is less than its n. */
struct value seq_at(const struct seq *s, uint32_t i);
static inline struct value loop_at(const struct loop *l, uint32_t i) {
    if (l->range)
        return seq_at(l->range, i);
    return l->items[i];
}
/* Returns an empty sequence with room for @cap elements. NULL: failed. */
struct seq *seq_new(struct render *rd, uint8_t kind, uint32_t cap);
/* Makes a range of @n elements. NULL: failed. */
struct seq *seq_range(struct render *rd, wide start, wide stop, wide step, uint32_t n);
int seq_add(struct render *rd, struct seq *s, struct value v);
/* Appends to a sequence that nothing but the caller has seen: arrays that it outgrows, and those of
 * seq_end(), are used again. */
int seq_build(struct render *rd, struct seq *s, struct value v);
/* Ends @s, which nothing refers to and whose array is its own. */
void seq_end(struct render *rd, struct seq *s);
/* makes a tuple */
int value_pair(struct render *rd, struct value a, struct value b, struct value *out);

/* Sorts @n values by @keys (may be @v itself) in place, stably. */
int value_sort(struct render *rd, struct value *v, struct value *keys, uint32_t n, bool reverse);

/* Returns an empty dict with room for @cap entries. NULL: failed. */
struct dict *dict_new(struct render *rd, uint32_t cap);
/* Appends @key, or replaces its value in place if the dict has it. */
int dict_set(struct render *rd, struct dict *d, struct value key, struct value v);
/* Searches @key. Returns 1 with *out set (@out may be NULL), 0 if there is none, or a negative
 * value after a failure. */
int dict_get(struct render *rd, const struct dict *d, struct value key, struct value *out);
int dict_get_str(struct render *rd, const struct dict *d, const struct tstr *key,
                 struct value *out);
int dict_remove(struct render *rd, struct dict *d, struct value key,
                struct value *out); /* returns like dict_get() */
/* returns a copy sorted by key */
struct dict_entry *dict_sorted(struct render *rd, const struct dict *d);
