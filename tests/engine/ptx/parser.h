#pragma once

/*
 * parser - the state of the parser: functions of modules, symbols, labels.
 */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/engine/ptx/parse.h"

#define MAX_DEPTH 64

/* A function of a module. Its body is parsed where it is used. */
struct function {
    char name[256];
    /* position after the opening bracket, or brace */
    const char *params, *body;
    const char *module, *text;
    uint32_t max_threads, cluster;
    /* compute capability that it is compiled for, such as 90 */
    int family;
    /* compiled for sm_90a, which runs on no other device */
    bool is_own;
    bool is_entry;
    struct ptx_kernel *kernel;
};

#define MAX_FUNCTIONS 1024
extern struct function ptx_functions[MAX_FUNCTIONS];
extern uint32_t ptx_n_functions;

enum symbol_kind { SYM_REGS, SYM_SHARED, SYM_DYNAMIC, SYM_LOCAL, SYM_PARAM };

struct symbol {
    char name[200];
    enum symbol_kind kind;
    /* 1: predicates */
    uint8_t width;
    /* place or index of the first register; offset of a variable */
    int32_t first;
    /* number of registers of NAME<count>; 0: a single one */
    uint32_t count;
};

struct label {
    char name[100];
    uint32_t inlined, at;
};

struct parser {
    const struct function *function;
    struct ptx_kernel *k;
    const char *p;
    uint32_t line;
    struct symbol symbols[256];
    uint32_t n_symbols, first_symbol, scopes[MAX_DEPTH], depth, base_depth;
    struct label *labels, *uses;
    uint32_t n_labels, n_uses, max_labels, max_uses, n_ops, max_ops;
    /* number of the inlined call that is parsed; 0: the kernel itself */
    uint32_t inlined, n_inlined;
    /* variables in shared memory */
    struct symbol statics[64];
    uint32_t n_statics;
    /* constants that hold the address of dynamic shared memory, patched at the end */
    int32_t patched[2];
    uint32_t n_patched;
    size_t max_consts;
};

/* errors.c */
_Noreturn void refuse_at(const struct parser *ps, const char *why);
_Noreturn void ptx_end(void); /* ends the process, or jumps, with ptx_message */
void ptx_set_running(const struct ptx_kernel *k);

/* operands.c */
struct symbol *add_symbol(struct parser *ps, const char *name, enum symbol_kind kind);
/* Returns the symbol of @name. For NAME<count>, sets *nth to the index in the name. */
const struct symbol *find_symbol(const struct parser *ps, const char *name, uint32_t *nth);
void read_name(const char **p, char *name, size_t size);
void read_number(struct instruction *in, struct operand *o, const char **p);
void read_operand(struct instruction *in, struct operand *o, const char **p);

/* parse.c */
/* Returns array @p of elements of @size bytes with room for one more than @n elements. */
void *grown(void *p, uint32_t n, uint32_t *max, size_t size);
/* Parses up to the brace that ends the function. */
void parse_body(struct parser *ps);
/* Parses a variable, .SPACE .align N .TYPE NAME[COUNT]. Returns the position after it. */
const char *declare_variable(struct parser *ps, const char *p, enum symbol_kind kind, size_t *bytes,
                             bool dynamic);

static inline bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

static inline void blanks(const char **p) {
    while (isspace((unsigned char)**p))
        (*p)++;
}
