#include "base/real.h"

#include <sleef.h>

/* sleef.h declares these only if the compiler may use fused multiply-add; here the check is at run time. */
#ifdef __x86_64__
double Sleef_finz_sind1_u10purecfma(double);
double Sleef_finz_cosd1_u10purecfma(double);
double Sleef_finz_powd1_u10purecfma(double, double);
double Sleef_finz_logd1_u10purecfma(double);
double Sleef_finz_expd1_u10purecfma(double);

/* SLEEF's library is built with AVX2 where it uses the fused multiply-add. */
bool real_has_common_bits(void)
{
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}
#define EITHER(fused, plain) (real_has_common_bits() ? (fused) : (plain))
#else
bool real_has_common_bits(void)
{
    return true;
}
#define EITHER(fused, plain) (fused)
#endif

double real_sin(double x)
{
    return EITHER(Sleef_finz_sind1_u10purecfma(x), Sleef_cinz_sind1_u10purec(x));
}

double real_cos(double x)
{
    return EITHER(Sleef_finz_cosd1_u10purecfma(x), Sleef_cinz_cosd1_u10purec(x));
}

double real_pow(double x, double y)
{
    return EITHER(Sleef_finz_powd1_u10purecfma(x, y), Sleef_cinz_powd1_u10purec(x, y));
}

double real_log(double x)
{
    return EITHER(Sleef_finz_logd1_u10purecfma(x), Sleef_cinz_logd1_u10purec(x));
}

double real_exp(double x)
{
    return EITHER(Sleef_finz_expd1_u10purecfma(x), Sleef_cinz_expd1_u10purec(x));
}
