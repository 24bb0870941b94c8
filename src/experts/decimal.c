#include "experts/decimal.h"

bool decimal_take(const char **at, const char *end, uint64_t most, uint64_t *out)
{
    const char *p = *at;
    uint64_t value = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (most - digit) / 10 || digit > most)
            return false;
        value = value * 10 + digit;
    }
    if (p == *at || (**at == '0' && p - *at > 1))
        return false;
    *at = p;
    *out = value;
    return true;
}

bool decimal_skip(const char **at, const char *end, char c)
{
    if (*at == end || **at != c)
        return false;
    ++*at;
    return true;
}
