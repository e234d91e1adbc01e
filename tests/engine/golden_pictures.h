#pragma once

/*
 * golden_pictures - expected values of models with pictures (golden-vision/NAME.json of the test
 * data): rows of pictures and the logits after them, computed in float64, and greedy tokens.
 */

#include <stdint.h>

#include "engine/types.h"
#include "tests/support/test_data.h"
#include "vision/picture.h"

enum { GP_CASES = 10, GP_PICTURES = 4, GP_GREEDY = 16, GP_EXACT = 4 /* greedy rows with logits */ };

struct gp_case {
    char name[32];
    /* n_behind: number of tokens after the last picture */
    uint32_t n_prompt, n_behind;
    /* placeholders are 0 */
    int32_t *prompt;
    uint32_t n_pictures, width;
    /* rows: the file's, computed in float64 */
    struct engine_picture picture[GP_PICTURES];
    /* pixels in the form that the encoder takes */
    struct picture pixels[GP_PICTURES];
    float *rows;
    /* [n_behind + GP_EXACT][n_vocab] */
    float *logits;
    uint32_t n_vocab;
    int32_t greedy[GP_GREEDY];
};

struct golden_pictures {
    char model[TEST_DATA_PATH], projector[TEST_DATA_PATH];
    uint32_t n_cases;
    struct gp_case cases[GP_CASES];
};

/* Fails the test if a file is missing or not as described. */
struct golden_pictures *gp_load(const char *name);
struct golden_pictures *gp_free(struct golden_pictures *g);
DEFINE_FREEP(struct golden_pictures, gp)
