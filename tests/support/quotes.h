#pragma once

/* JSON in C without escaped quotes: J("{'model':'tiny'}") is {"model":"tiny"}. The literal has no
 * apostrophe of its own. The text lives until its test ends. */
#define J(literal) json_quotes("" literal)

const char *json_quotes(const char *text);
