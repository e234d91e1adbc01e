#pragma once

/*
 * sight - the form of a picture in a model's prompt: the tokens that its family was trained with
 * around the rows of a picture, as text for the chat template and as ids.
 *
 *     text:    <|vision_start|><|image_pad|><|vision_end|>   in a message's content
 *     tokens:  start, pad, end                               what the tokenizer makes of it
 *     prompt:  start, pad, pad, ... (a row each), end
 *
 * The text is the service's own, so the tokenizer recognises it; what a user writes never becomes
 * one of these tokens.
 */

#include <stdbool.h>
#include <stdint.h>

struct projector;
struct tokenizer;

/* Zeroed: the model takes no pictures. */
struct sight {
    char text[128];
    uint32_t split,
        /* the mark is text[split, split + mark_len); mark_len 0 if it stays */
        mark_len;
    /* placeholder for the rows of a picture */
    int32_t mark;
    /* the marker stays in the prompt, and the rows of the picture follow it */
    bool stays;
};

/* Fills in @s for a model with this vocabulary. Returns false, with *s zeroed, if the vocabulary
 * lacks the tokens of the projector's family. */
bool sight_init(struct sight *s, const struct projector *p, const struct tokenizer *t);
