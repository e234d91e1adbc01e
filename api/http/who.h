#pragma once

/* who - who sends a request, as its log line tells: address, user agent, and the path where no
 * route has it. Clients choose these texts: they are cut here and escaped where they are written. */

struct exchange;

/* Fills client, agent and path of @x from its connection. */
void who_note(struct exchange *x);
