#pragma once

/*
 * conversation - OpenAI's conversations: items under one id, which grow with each response that
 * names it. They are kept in the store of responses (store.h).
 */

struct err;
struct exchange;
struct http;
struct responses;
struct stored;

#define CONVERSATION_ID_PREFIX "conv_"

/* Locks the conversation of a response that begins: nothing else is added to it until the response
 * has ended. Returns 0, or a 400 if another response is being added, or was added since the body
 * was read. On the loop's thread. */
int conversation_lock(struct responses *rs, struct err *err);
/* Makes the stored response @id, which has continued @c, the end of @c. */
void conversation_add(struct stored *c, const char *id);

/* route.serve */
void conversations_create_serve(struct exchange *x, struct http *h);
void conversations_get_serve(struct exchange *x, struct http *h);
void conversations_update_serve(struct exchange *x, struct http *h);
void conversations_delete_serve(struct exchange *x, struct http *h);
void conversations_items_serve(struct exchange *x, struct http *h);
void conversations_add_serve(struct exchange *x, struct http *h);
