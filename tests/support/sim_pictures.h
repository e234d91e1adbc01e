#pragma once

/*
 * sim_pictures - pictures in the prompts of simulated clients, and the front that answers for their
 * pixels. Private to the simulated scheduler.
 *
 * There is a small pool of pictures. Their digests differ in the last byte only, and all
 * placeholders are one token, so a prefix of another picture is found where the whole is not
 * compared. The last picture of the pool is broken where that is asked for: the front has no pixels
 * of it.
 */

#include <stdbool.h>
#include <stdint.h>

struct sim;
struct sim_client;

enum { SIM_PICTURES = 6, SIM_PICTURE_ROWS = 15, SIM_PLACEHOLDER = 0, SIM_NEEDS = 256 };

/* A picture that the worker has requested. */
struct sim_need {
    uint64_t id;
    /* calls of sim_answer_pictures() until the next part is sent */
    uint32_t index, offset, wait;
};

/* Puts pictures of the pool at positions in [from, to) of @c, which is not submitted; @seed
 * determines the positions. */
void sim_add_pictures(struct sim *s, struct sim_client *c, uint32_t from, uint32_t to,
                      uint64_t seed);
/* Puts picture @i of the pool at position @at. */
void sim_put_picture(struct sim *s, struct sim_client *c, uint32_t i, uint32_t at);
/* Copies the pictures of the first @n_tokens of @before, with which @c begins. */
void sim_copy_pictures(struct sim_client *c, const struct sim_client *before, uint32_t n_tokens);
/* Returns the tokens of @c as the engine reads them, with pictures in place of placeholders:
 * telltale_ask.seen. */
const int32_t *sim_seen(const struct sim_client *c);
/* Adds the outputs of @c to its read tokens, when they are known. */
void sim_see_outputs(struct sim_client *c);
void sim_free_pictures(struct sim_client *c);

/* sim_answer_pictures() sends parts of requested pictures before a step; sim_take_needs() takes new
 * requests for pictures after it. */
void sim_answer_pictures(struct sim *s);
void sim_take_needs(struct sim *s);
/* Returns true if a request for a picture is unanswered or about to be made. */
bool sim_pictures_pending(struct sim *s);
/* Checks the rules of pictures; call after each step. */
void sim_check_pictures(struct sim *s);
