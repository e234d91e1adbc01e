#pragma once

/* served - an API on a loop of its own with a scripted worker (tests/api/world.h), for inputs that
 * are requests. One lives as long as the process; every answer is checked. */

#include <stddef.h>
#include <stdint.h>

/* Sends @data over a new connection in pieces, then waits a few turns for the answer, which must
 * begin as HTTP does. Another connection is served afterwards. */
void served_bytes(const uint8_t *data, size_t len);
/* Sends the request of @head ("POST /v1/embeddings") with @len bytes of body at @data. The answer
 * must be complete, its status one that a body may have, and its body JSON or a stream. */
void served_body(const char *head, const uint8_t *data, size_t len);
/* Calls served_body() with @data behind its first byte, which chooses among the @n heads. */
void served_choice(const char *const *heads, size_t n, const uint8_t *data, size_t len);
