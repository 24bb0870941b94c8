#include "cpu/math.h"

#include "cpu/isa.h"

/* sleef.h shows these only to a file that is compiled with a fused multiply-add; here the processor is asked. */
#ifdef __x86_64__
float Sleef_finz_expf1_u10purecfma(float);
float Sleef_finz_logf1_u10purecfma(float);
float Sleef_finz_log1pf1_u10purecfma(float);
float Sleef_finz_tanhf1_u10purecfma(float);
double Sleef_finz_sind1_u10purecfma(double);
double Sleef_finz_cosd1_u10purecfma(double);
double Sleef_finz_powd1_u10purecfma(double, double);

/* SLEEF's library is built with AVX2 where it uses the fused multiply-add. */
bool cpu_common_bits(void)
{
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}
#define EITHER(fused, plain) (cpu_common_bits() ? (fused) : (plain))
#else
bool cpu_common_bits(void)
{
    return true;
}
#define EITHER(fused, plain) (fused)
#endif

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

double math_sin(double x)
{
    return EITHER(Sleef_finz_sind1_u10purecfma(x), Sleef_cinz_sind1_u10purec(x));
}

double math_cos(double x)
{
    return EITHER(Sleef_finz_cosd1_u10purecfma(x), Sleef_cinz_cosd1_u10purec(x));
}

double math_pow(double x, double y)
{
    return EITHER(Sleef_finz_powd1_u10purecfma(x, y), Sleef_cinz_powd1_u10purec(x, y));
}
