#pragma once

/*
 * bounds - which bound (engine/cuda/bounds.h) the input of each product of a model has.
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
