#pragma once

/* normalize - rewrites a conversation for a strict chat template. Agents send messages in orders
 * that many templates refuse, or of which they leave a part out; such messages are reordered. Past
 * calls in a form that templates refuse are rewritten, too, because an agent cannot change what the
 * model wrote. */

#include <stdbool.h>

#include "base/lib_types.h"

enum normalize_how {
    /* a system message that is not the first message becomes one of the user */
    NORMALIZE_SYSTEM = 1,
    /* the first system message becomes one of the user, too */
    NORMALIZE_NO_SYSTEM = 2,
    /* consecutive messages of the user are joined, and so are texts of the assistant; each call
     * gets its own message, followed by its result */
    NORMALIZE_TURNS = 4,
    /* arguments become objects; calls and results get ids of 9 letters and digits, as Mistral's
     * templates require */
    NORMALIZE_CALLS = 8,
    /* with NORMALIZE_TURNS: missing turns are added before a message of the user, and before the
     * first message */
    NORMALIZE_MISSING = 16,
};

/* Makes a copy of @messages (of a chat) in *out, rewritten according to @how. Returns 0 or
 * -ENOMEM. */
int normalize_messages(yyjson_val *messages, unsigned how, yyjson_doc **out);
/* Returns true if a system message is not the first message. */
bool normalize_has_late_system(yyjson_val *messages);
/* Returns true if one of the messages has calls. */
bool normalize_has_calls(yyjson_val *messages);
