#include "cpu/math.h"

#include "base/real.h"
#include "cpu/isa.h"

/* sleef.h declares these only for files that are compiled with a fused multiply-add; this one asks the
 * processor. */
#ifdef __x86_64__
float Sleef_finz_expf1_u10purecfma(float);
float Sleef_finz_logf1_u10purecfma(float);
float Sleef_finz_log1pf1_u10purecfma(float);
float Sleef_finz_tanhf1_u10purecfma(float);
#define EITHER(fused, plain) (cpu_common_bits() ? (fused) : (plain))
#else
#define EITHER(fused, plain) (fused)
#endif

bool cpu_common_bits(void)
{
    return real_has_common_bits();
}

float math_exp_1(float x)
{
    return EITHER(Sleef_finz_expf1_u10purecfma(x), Sleef_cinz_expf1_u10purec(x));
}

float math_log_1(float x)
{
    return EITHER(Sleef_finz_logf1_u10purecfma(x), Sleef_cinz_logf1_u10purec(x));
}

float math_log1p_1(float x)
{
    return EITHER(Sleef_finz_log1pf1_u10purecfma(x), Sleef_cinz_log1pf1_u10purec(x));
}

float math_tanh_1(float x)
{
    return EITHER(Sleef_finz_tanhf1_u10purecfma(x), Sleef_cinz_tanhf1_u10purec(x));
}
