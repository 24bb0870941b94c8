#include "server/page.h"

static const unsigned char text[] = {
#include "page.inc"
};

const char *page_text(void)
{
    return (const char *)text;
}

size_t page_bytes(void)
{
    return sizeof text;
}
