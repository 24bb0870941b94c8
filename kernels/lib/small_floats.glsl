// small_floats.glsl - float16 and floats of 4 and 8 bits as float32, exactly.
#ifndef SMALL_FLOATS_GLSL
#define SMALL_FLOATS_GLSL

// Turns the exponent and mantissa bits of a small float into a float32. `size` has them in the place of a
// float32's, `least` is the exponent that is added. f = 2^(least - 127) (1 + mantissa) if the small exponent
// is 0; there the true value is 2 f - 2^(least - 126), which is less than f. Elsewhere f is the true value,
// and not more than that. No float32 denormal occurs, which devices may flush. With E2M1, least = 126:
//   exponent 0, mantissa 1    f = 0.75, 2 f - 1 = 0.5    0.5
//   exponent 1, mantissa 1    f = 1.5,  2 f - 1 = 2      1.5
float float_of(uint size, const uint least)
{
    float f = uintBitsToFloat(size + (least << 23));
    return min(f, 2.0 * f - uintBitsToFloat(least + 1u << 23));
}

float with_sign(float size, uint sign)
{
    return uintBitsToFloat(floatBitsToUint(size) | sign);
}

// Returns a finite float16: sign, 5 bits of exponent, 10 of mantissa.
float f16_value(uint bits)
{
    return with_sign(float_of((bits & 0x7fffu) << 13, 112), (bits & 0x8000u) << 16);
}

// Returns an E4M3 number: sign, 4 bits of exponent, 3 of mantissa; no NaN.
float e4m3_value(uint bits)
{
    return with_sign(float_of((bits & 0x7fu) << 20, 120), (bits & 0x80u) << 24);
}

// Returns an E2M1 number: sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
float e2m1_value(uint bits)
{
    return with_sign(float_of((bits & 7u) << 22, 126), (bits & 8u) << 28);
}

#endif
