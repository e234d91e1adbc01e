#pragma once

/*
 * parse - what decoders of instructions get of the parser: the parts of the mnemonic and operands.
 */

#include <string.h>
#include "tests/engine/ptx/core.h"

#define MAX_OPERANDS 8
#define MAX_LIST 160

enum operand_kind { REGISTER, PREDICATE, IMMEDIATE, ADDRESS, LIST, SINK, SYMBOL, LABEL };

struct operand {
    enum operand_kind kind;
    int32_t place; /* of a register, or of an address' base */
    uint8_t width; /* bytes of a register */
    bool is_float; /* an immediate in hexadecimal digits of a float */
    bool negated;
    uint64_t value; /* of an immediate; offset of an address or symbol */
    enum space space;
    uint16_t first, n; /* of a list, in instruction.list */
    int32_t second;    /* of d|p: the predicate, -1: none, -2: a sink */
    char label[200];
};

struct parser;

struct instruction {
    char name[160]; /* the whole mnemonic */
    char text[200];
    char *part[16]; /* the mnemonic at its dots */
    uint32_t n_parts;
    uint32_t used; /* bit i: part i was understood */
    struct operand operand[MAX_OPERANDS];
    uint32_t n_operands;
    struct operand list[MAX_LIST];
    uint32_t n_list;
    struct parser *parser;
    struct op *op;
    bool negated; /* a part begins another one */
};

/* Returns whether the mnemonic has the part, and marks it as understood. */
bool has(struct instruction *in, const char *part);
/* Ends with an error that names the line. */
_Noreturn void refuse(const struct instruction *in, const char *why);
/* Returns the place of an operand of @width bytes, a register of exactly this width or an
 * immediate. */
int32_t source(struct instruction *in, uint32_t i, uint32_t width);
int32_t source_of(struct instruction *in, const struct operand *operand, uint32_t width);
/* Likewise of a register that is written. */
int32_t target(struct instruction *in, uint32_t i, uint32_t width);
/* Returns the index of a predicate. */
int32_t predicate(struct instruction *in, uint32_t i);
/* Takes operand @i as an address: sets r[@to], imm, wide and space of the op. */
void address(struct instruction *in, uint32_t i, uint32_t to);
/* Sets list of the op from operands @from .. @to, which are lists or registers of @width. */
void lists(struct instruction *in, uint32_t from, uint32_t to, uint32_t width);
/* Returns an immediate that must be one. */
int64_t immediate(struct instruction *in, uint32_t i);
uint32_t type_size(const char *type);

typedef void decode_fn(struct instruction *in);

/* Takes the address of the variable that is operand 1: sets r[1] and imm. */
void decode_address_of(struct instruction *in, uint32_t width);
/* Keeps that the op's label is to be found; "(return)": the end of an inlined function. */
void use_label(struct instruction *in, const char *name);
/* Returns whether the instruction is one of an inlined function. */
bool in_call(const struct instruction *in);
/* The kernel has copies in bulk or wgmma, which reach shared memory another way. */
void note_proxies(const struct instruction *in);

/* Forms that are looked up by their whole name; widths: of each operand, 1 to 8 bytes or p. */
struct form {
    const char *name;
    void (*run)(struct warp *w, const struct op *o, uint32_t mask);
    const char *operands;
};
extern const struct form ptx_forms[], ptx_float_forms[];
extern const uint32_t ptx_n_forms, ptx_n_float_forms;

decode_fn decode_setp, decode_cvt, decode_mov, decode_cvta, decode_load, decode_store, decode_atom,
    decode_copy, decode_mbarrier, decode_matrix, decode_shfl, decode_vote, decode_sync,
    decode_wgmma, decode_prefetch, decode_lop3, decode_mapa;
