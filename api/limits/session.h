#pragma once

/* session - finds the session (the requests of one agent or conversation) to which a request
 * belongs. */

#include <stdint.h>

#include "base/lib_types.h"
#include "proto/messages.h"

struct http;

struct session_key {
    /* 0: unknown */
    uint64_t id;
    /* source of the session: a header, a field, "conversation", or NULL */
    const char *from;
};

/* Fields of a body that may name the session; empty where they are absent. */
struct session_names {
    struct str cache_key, safety_id, user, metadata_user;
    /* by session_conversation() */
    uint64_t conversation;
};

/* @secret keys the numbers, so that clients cannot compute them or find names that collide. */

/* Finds the session's key in the header block. */
struct session_key session_of_head(const uint64_t secret[2], uint32_t tenant, const struct http *h);
/* Finds the session's key in the body; its conversation comes last. */
struct session_key session_of_body(const uint64_t secret[2], uint32_t tenant,
                                   const struct session_names *n);
/* Returns a number for the beginning of a chat: everything up to the first message of the user.
 * 0: it has none. On any thread. */
uint64_t session_conversation(const uint64_t secret[2], yyjson_val *messages);
