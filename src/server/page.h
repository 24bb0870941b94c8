/* page.h - the chat page, whose parts are in page/ and which is compiled into the program. */
#ifndef MOEFLUX_SERVER_PAGE_H
#define MOEFLUX_SERVER_PAGE_H

#include <stddef.h>

const char *page_text(void);
size_t page_bytes(void);

#endif
