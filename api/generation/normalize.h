#pragma once

/* normalize - rewrites a conversation for a strict chat template. Agents send messages in orders
 * that many templates refuse, or of which they leave a part out; messages that can be given in
 * another order are. So are past calls in a form that templates refuse: an agent cannot take back
 * what the model wrote. */

#include <stdbool.h>
#include <yyjson.h>

enum bend {
    /* a system message that is not the first one is the user's */
    NORMALIZE_SYSTEM = 1,
    /* and so is the first one */
    NORMALIZE_NO_SYSTEM = 2,
    /* messages of the user that follow each other are one, and so are texts of the assistant; each
     * call has a message, with its result behind it */
    NORMALIZE_TURNS = 4,
    /* arguments are objects; ids of calls and results are there, and of 9 letters and digits, as
     * Mistral's templates insist */
    NORMALIZE_CALLS = 8,
    /* with NORMALIZE_TURNS: no turn is missing before one of the user's, or before the first */
    NORMALIZE_MISSING = 16,
};

/* A copy of @messages (of a chat) in *out. Returns 0 or -ENOMEM. */
int normalize_messages(yyjson_val *messages, unsigned how, yyjson_doc **out);
/* Returns true if a system message is not the first message. */
bool normalize_has_late_system(yyjson_val *messages);
/* Returns true if one of the messages has calls. */
bool normalize_has_calls(yyjson_val *messages);
