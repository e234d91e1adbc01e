#pragma once

/*
 * lanes - loops over the lanes of a warp that execute an instruction.
 */

#include "tests/engine/ptx/core.h"

#define IVDEP _Pragma("GCC ivdep")

/* Executes a statement for all lanes, vectorised, if all take part; else for the lanes of @m one by
 * one. Source and target registers are identical or disjoint, so the order has no effect. */
#define EACH_LANE(m, statement)                                                                    \
    do {                                                                                           \
        if ((m) == ALL) {                                                                          \
            IVDEP for (uint32_t l = 0; l < LANES; l++) {                                           \
                statement;                                                                         \
            }                                                                                      \
        } else {                                                                                   \
            for (uint32_t rest = (m); rest; rest &= rest - 1) {                                    \
                uint32_t l = (uint32_t)__builtin_ctz(rest);                                        \
                statement;                                                                         \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* Define instructions with one, two and three sources a, b, c. */
#define OP1(NAME, TD, TA, EXPR)                                                                    \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        TD *d = place(w, o->r[0]);                                                                 \
        const TA *pa = place(w, o->r[1]);                                                          \
        EACH_LANE(m, TA a = pa[l]; d[l] = (TD)(EXPR));                                             \
    }
#define OP2(NAME, TD, TA, TB, EXPR)                                                                \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        TD *d = place(w, o->r[0]);                                                                 \
        const TA *pa = place(w, o->r[1]);                                                          \
        const TB *pb = place(w, o->r[2]);                                                          \
        EACH_LANE(m, TA a = pa[l]; TB b = pb[l]; d[l] = (TD)(EXPR));                               \
    }
#define OP3(NAME, TD, TA, TB, TC, EXPR)                                                            \
    static void NAME(struct warp *w, const struct op *o, uint32_t m) {                             \
        TD *d = place(w, o->r[0]);                                                                 \
        const TA *pa = place(w, o->r[1]);                                                          \
        const TB *pb = place(w, o->r[2]);                                                          \
        const TC *pc = place(w, o->r[3]);                                                          \
        EACH_LANE(m, TA a = pa[l]; TB b = pb[l]; TC c = pc[l]; d[l] = (TD)(EXPR));                 \
    }
