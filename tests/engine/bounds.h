#pragma once

/*
 * bounds - largest magnitudes that the inputs of products can have, computed from the weights of a
 * model alone. A row of n values that has passed an RMS norm has a length of at most sqrt(n), so
 * that a product W with it is bounded by the lengths of the rows of W, and what follows from there
 * by the functions in between.
 */

#include "engine/model.h"

enum bounds_kind { BOUNDS_NORM, BOUNDS_ATTENTION, BOUNDS_FFN, BOUNDS_KINDS };

/* Bound of the input of a product. */
struct bounds_input {
    enum bounds_kind kind;
    /* INFINITY: none is known */
    float most;
};

/* Returns the bound of the input of the products of m->op[i], for pages of f16. */
struct bounds_input bounds_of(const struct model *m, uint32_t i);
