// math.glsl - elementary functions whose error Vulkan does not bound, accurate to about one unit in the last
// place. The decay of the delta net multiplies its error over the whole context, so an exp with 3 ulp would
// not do.

float not_a_number()
{
    return uintBitsToFloat(0x7fc00000u);
}

// Tests the bits, because compilers may assume that no comparison sees a NaN.
bool is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

// Returns exp(x); NaN for NaN. Below -87 it returns 0 (the true value is near the denormals), above 88 it
// returns exp(88). Cody-Waite reduction x = k ln2 + r, |r| <= ln2 / 2, and the degree-7 Taylor polynomial
// (1e-8 relative). ln2's high part has 9 bits to spare, so k * high is exact with or without fused
// multiply-add.
float exp_exact(float x)
{
    if (is_nan(x))
        return not_a_number();
    if (x < -87.0)
        return 0.0;
    x = min(x, 88.0);
    precise float k = roundEven(x * 1.44269504);
    precise float r = x - k * 0.693359375;
    r = r + k * 2.12194440e-4;
    precise float p = 1.98412698e-4;
    p = p * r + 1.38888889e-3;
    p = p * r + 8.33333333e-3;
    p = p * r + 4.16666667e-2;
    p = p * r + 1.66666667e-1;
    p = p * r + 0.5;
    precise float q = r * r * p + r + 1.0;
    return q * uintBitsToFloat(uint(int(k) + 127) << 23);
}

// Returns log(1 + e) for 0 <= e <= 1: 2 atanh(s), s = e / (2 + e) <= 1/3. The first omitted term is 1.4e-9
// relative.
float log1p_unit(float e)
{
    precise float s = e / (2.0 + e);
    precise float z = s * s;
    precise float p = 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    return 2.0 * (s * z * p + s);
}

float softplus(float x)
{
    return max(x, 0.0) + log1p_unit(exp_exact(-abs(x)));
}

// Returns 1 / (1 + exp(-x)) without overflow on either side. The device's own exp has an error of at most 3 +
// 2 |x| ulp, 1e-6 where the result still counts. An exact one would be most of the code of a small kernel.
float sigmoid(float x)
{
    float e = exp(-abs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

float silu(float x)
{
    return x * sigmoid(x);
}

// Returns GELU in its approximation by tanh: x (1 + tanh(h)) / 2 = x sigmoid(2 h), 2 h = 2 sqrt(2 / pi) (x +
// 0.044715 x^3).
float gelu(float x)
{
    return x * sigmoid(1.59576912 * (x + 0.044715 * x * x * x));
}

// Returns tanh(x) to a few units in the last place: near 0 an odd polynomial, fitted to 4e-9.
float tanh_near(float x)
{
    float a = abs(x), z = x * x;
    float p = -0.00571704423;
    p = p * z + 0.0206505861;
    p = p * z - 0.0537434965;
    p = p * z + 0.133314908;
    p = p * z - 0.333332837;
    float e = exp(-2.0 * a), far = (1.0 - e) / (1.0 + e);
    return a < 0.625 ? x + x * z * p : x < 0.0 ? -far : far;
}

// Returns SiTU. bits: the two factors, float16 numbers without their sign and their last bit.
float situ(float g, float u, uint bits)
{
    uint linear = bits & ((1u << GATING_SITU_SHIFT) - 1u);
    vec2 by = unpackHalf2x16((bits >> GATING_SITU_SHIFT) << 1 | linear << 17);
    float up = by.y > 0.0 ? by.y * tanh_near(u / by.y) : u;
    return by.x * tanh_near(g / by.x) * sigmoid(g) * up;
}

// Returns an activation from its gate's and its up row's product. gating: see ops/gating.h.
float gated(float g, float u, float gating)
{
    if (gating == 0.0)
        return silu(g) * u;
    if (gating == GATING_GELU)
        return gelu(g) * u;
    if (gating == GATING_RELU)
        return max(g, 0.0) * u;
    if (gating >= GATING_SITU)
        return situ(g, u, floatBitsToUint(gating) - GATING_SITU_BITS);
    bool inputs = gating < -1.0e7;
    float c = abs(gating) / (inputs ? GATING_INPUTS : 1.0), bounded = clamp(u, -c, c);
    if (inputs)
        return silu(min(g, c)) * bounded;
    if (gating < 0.0)
        return min(silu(g), c) * bounded;
    g = min(g, c);
    return g * sigmoid(1.702 * g) * (bounded + 1.0);
}
