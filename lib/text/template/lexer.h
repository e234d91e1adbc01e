#pragma once

/*
 * lexer - converts a template's source to tokens. It also applies the rules of white space: `-` at
 * a tag, trim_blocks (removes the newline after a block tag or a comment) and lstrip_blocks
 * (removes blanks before one).
 */

#include "base/arena.h"
#include "base/err.h"
#include "text/template/tstr.h"

enum token_type {
    T_TEXT,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_PRINT_BEGIN,
    T_PRINT_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    /* op: one character, or two as LEX2() */
    T_OP,
    T_END,
};

#define LEX2(a, b) ((uint16_t)((a) << 8 | (b)))

struct token {
    uint8_t type;
    uint16_t op;
    uint32_t line;
    /* in the arena: T_TEXT, T_NAME, T_STRING (decoded) */
    const char *s;
    size_t len;
    union {
        uint64_t i;
        double f;
    };
};

/* A growing list of tokens; n <= cap; zeroed at first. */
struct token_list {
    struct token *t;
    size_t n, cap;
};

/* Reads all tokens, the last of type T_END, to *@out, whose t the caller frees. Returns 0, -ENOMEM,
 * or -EINVAL with @err. */
int lexer_run(const char *source, size_t len, struct arena *arena, struct token_list *out,
              struct err *err);
/* Returns -EINVAL with "chat template, line N: ..." in @err. */
int lexer_fail(struct err *err, uint32_t line, const char *fmt, ...) PRINTF(3, 4);
