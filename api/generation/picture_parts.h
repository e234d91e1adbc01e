#pragma once

/*
 * picture_parts - moves pictures from a request's body into its prompts.
 *
 *     parts of messages ──find──> request.pictures (files) ──look──> layouts, digests
 *                                    addresses ──fetch──^
 *     tokens with a mark for each ──expand──> as many tokens as rows, struct submit_picture
 */

#include "api/generation/gen_request.h"

struct prompt_job;

/* Member of a part with a picture or a file, in a body that a dialect has translated: the place
 * that errors name. */
#define PICTURE_PLACE "place"

/* Returns true if a part of a content is a picture, in the form of any dialect. */
bool picture_part_is(yyjson_val *part);
/* Returns the picture of a part that picture_parts_resolve() has written: below
 * request.n_pictures. */
uint32_t picture_part_index(yyjson_val *part);

/* Returns true for the result of a call. */
bool message_is_result(yyjson_val *m);
/* Returns the index of the message in which the user asks, or the number of messages: pictures and
 * files of the others become notes if they cannot be read. */
size_t picture_parts_asking(yyjson_val *messages);

/* Adds the picture that @data holds (image_data.h), or whose address it is, to @r. @low: detail is
 * "low". Returns 0, -ENOMEM, or a 400 about @place. */
int picture_parts_add(struct gen_request *r, yyjson_val *data, bool low, const char *place,
                      struct err *err);
/* Moves the pictures of the messages' parts, except the assistant's, to request.pictures, once, for
 * a model that takes pictures, and reads their headers. Returns 0, -ENOMEM, -ECANCELED, with
 * job->quick -EAGAIN, -EINPROGRESS where picture_parts_fetch() is to be called before, or an error
 * that names the part. */
int picture_parts_resolve(struct prompt_job *job);
/* Fetches the pictures that have addresses; blocks its thread. Returns as
 * picture_parts_resolve(). */
int picture_parts_fetch(struct prompt_job *job);
/* Notes that the prompt shows the pictures with the numbers @order, @n of them. Returns 0 or
 * -ENOMEM. */
int picture_parts_order(struct gen_request *r, const uint32_t *order, uint32_t n);
/* Puts rows in the place of marks in the tokens of all prompts, picture after picture in the order
 * that was noted, else in that of the request. Returns 0, -ENOMEM, or an error. */
int picture_parts_expand(struct prompt_job *job);
