#pragma once

/* xielu - the activation function xIELU (Huang and Schlag 2024), for host and device. */

#include "base/mathx.h"

struct xielu {
    float square, below, linear, limit;
};

/* Returns square x^2 + linear x for x > 0, below (e^min(x, limit) - 1 - x) + linear x for other
 * x. */
MX_FN float xielu_at(const struct xielu *p, float x) {
    if (x > 0)
        return p->square * x * x + p->linear * x;
    return p->below * (mx_expf(x < p->limit ? x : p->limit) - 1 - x) + p->linear * x;
}
