#pragma once

/*
 * text - a text, or another one in its place.
 */

/* Returns @s, or @other if @s is NULL. */
static inline const char *text_or(const char *s, const char *other) {
    if (s)
        return s;
    return other;
}

/* Returns @s, or @other if @s is empty. */
static inline const char *text_filled_or(const char *s, const char *other) {
    if (*s)
        return s;
    return other;
}
