#include "convert/search.h"

#include <stddef.h>

#include "cpu/isa.h"

#define DECLARE(set) void search_##set(struct search *s, bool more);
CPU_ISAS_SHARED(DECLARE)

search_fn *search_find(void)
{
#define ADDRESS(set) search_##set,
    static search_fn *const all[CPU_N_ISAS] = {CPU_ISAS_SHARED(ADDRESS)};
    return all[cpu_isa_find(NULL, NULL)->idx];
}
