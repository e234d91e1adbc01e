#pragma once

/*
 * parse - interface of the parser for decoders of instructions: parts of the mnemonic, and
 * operands.
 */

#include <string.h>

#include "tests/engine/ptx/core.h"

#define MAX_OPERANDS 8
#define MAX_LIST 160

enum operand_kind { REGISTER, PREDICATE, IMMEDIATE, ADDRESS, LIST, SINK, SYMBOL, LABEL };

struct operand {
    enum operand_kind kind;
    /* place of a register, or of an address's base */
    int32_t place;
    /* bytes of a register */
    uint8_t width;
    /* an immediate that is written as hexadecimal digits of a float */
    bool is_float;
    bool negated;
    /* value of an immediate; offset of an address or symbol */
    uint64_t value;
    enum space space;
    /* elements of a list, in instruction.list */
    uint16_t first, n;
    /* of an operand d|p: the predicate; -1: none, -2: a sink */
    int32_t second;
    char label[200];
};

struct parser;

struct instruction {
    /* the whole mnemonic */
    char name[160];
    char text[200];
    /* the mnemonic, split at its dots */
    char *part[16];
    uint32_t n_parts;
    /* bit i: a decoder has recognised part i */
    uint32_t used;
    struct operand operand[MAX_OPERANDS];
    uint32_t n_operands;
    struct operand list[MAX_LIST];
    uint32_t n_list;
    struct parser *parser;
    struct op *op;
};

/* Returns true if the mnemonic has the part, and marks it as recognised. */
bool has(struct instruction *in, const char *part);
/* Fails with an error that names the line. */
_Noreturn void refuse(const struct instruction *in, const char *why);
/* Returns the place of a source operand: a register of exactly @width bytes, or an immediate. */
int32_t source(struct instruction *in, uint32_t i, uint32_t width);
int32_t source_of(struct instruction *in, const struct operand *operand, uint32_t width);
/* Returns the place of a target register of @width bytes. */
int32_t target(struct instruction *in, uint32_t i, uint32_t width);
/* Returns the index of a predicate. */
int32_t predicate(struct instruction *in, uint32_t i);
/* Decodes operand @i as an address: sets r[@to], imm, wide and space of the op. */
void address(struct instruction *in, uint32_t i, uint32_t to);
/* Sets the op's list from operands @from .. @to, which are lists or registers of @width bytes. */
void lists(struct instruction *in, uint32_t from, uint32_t to, uint32_t width);
/* Returns the value of operand @i, which must be an immediate. */
int64_t immediate(struct instruction *in, uint32_t i);
uint32_t type_size(const char *type);

typedef void decode_fn(struct instruction *in);

/* Decodes operand 1 as the address of a variable: sets r[1] and imm. */
void decode_address_of(struct instruction *in, uint32_t width);
/* Records that the op's target is label @name, to be resolved later; "(return)" is the end of an
 * inlined function. */
void use_label(struct instruction *in, const char *name);
/* Returns true if the instruction belongs to an inlined function. */
bool in_call(const struct instruction *in);
/* Records that the kernel uses bulk copies or wgmma, which access shared memory through the async
 * proxy. */
void note_proxies(const struct instruction *in);

/* Forms that are found by their whole name. operands: the width of each, 1 to 8 bytes, or p for a
 * predicate. */
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
