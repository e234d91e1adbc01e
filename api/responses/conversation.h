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

/* A response that is a part of a conversation begins: nothing else is added to that until the
 * response is over. 0, or a 400 where something is being added, or has been since its body was
 * read. On the loop's thread. */
int conversation_lock(struct responses *rs, struct err *err);
/* The stored response @id, which has continued @c, is its end now. */
void conversation_add(struct stored *c, const char *id);

/* route.serve */
void conversations_create_serve(struct exchange *x, struct http *h);
void conversations_get_serve(struct exchange *x, struct http *h);
void conversations_update_serve(struct exchange *x, struct http *h);
void conversations_delete_serve(struct exchange *x, struct http *h);
void conversations_items_serve(struct exchange *x, struct http *h);
void conversations_add_serve(struct exchange *x, struct http *h);
