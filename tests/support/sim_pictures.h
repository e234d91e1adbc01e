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

/* Something that the worker has asked for. */
struct sim_need {
    uint64_t id;
    uint32_t index, offset, wait; /* calls until the next part is sent */
};

/* Puts pictures of the pool among tokens [from, to) of @c, which is not submitted, at places that
 * follow from @seed. */
void sim_add_pictures(struct sim *s, struct sim_client *c, uint32_t from, uint32_t to,
                      uint64_t seed);
/* Puts picture @i of the pool at @at. */
void sim_put_picture(struct sim *s, struct sim_client *c, uint32_t i, uint32_t at);
/* @c begins with the first @n_tokens of @before, and has its pictures there. */
void sim_copy_pictures(struct sim_client *c, const struct sim_client *before, uint32_t n_tokens);
/* Tokens of @c as they are read: telltale_ask.seen. */
const int32_t *sim_seen(const struct sim_client *c);
/* Once the outputs of @c are known. */
void sim_see_outputs(struct sim_client *c);
void sim_free_pictures(struct sim_client *c);

/* Before a step: sends some of what was asked for. After it: takes what is asked for now. */
void sim_answer_pictures(struct sim *s);
void sim_take_needs(struct sim *s);
/* Returns whether something was asked for, or is to be, and has not been answered. */
bool sim_pictures_pending(struct sim *s);
/* After each step: the rules. */
void sim_check_pictures(struct sim *s);
