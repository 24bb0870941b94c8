// formats.glsl - the table of the usual formats. The includer has USUAL, the set of those that occur.

// Columns of the table: constants where f is one. As sums, since a choice between choices becomes branches:
// wherever a kernel asks for a column there would be ten blocks, and glslc takes twice as long to clear them
// away.
#define ROW_BITS(name, number, bits, group, scheme, scale, f) + (f == number ? bits : 0)
#define ROW_SHIFT(name, number, bits, group, scheme, scale, f) \
    + (f == number ? (group == 128 ? 7 : group == 64 ? 6 : group == 32 ? 5 : 0) : 0)
#define ROW_IS_AFFINE(name, number, bits, group, scheme, scale, f) \
    + (f == number ? (SCHEME_##scheme == SCHEME_AFFINE ? 1 : 0) : 0)
#define ROW_CODE_BITS(name, number, bits, group, scheme, scale, f) \
    + (f == number ? (SCHEME_##scheme == SCHEME_AFFINE ? bits : 0) : 0)
uint format_bits(uint f)
{
    return uint(0 FORMAT_TABLE_USUAL(ROW_BITS, f));
}

uint format_group_shift(uint f)
{
    return uint(0 FORMAT_TABLE_USUAL(ROW_SHIFT, f));
}

// format_code_bits(f) > 0 says the same, but glslc 2023.2 folds that too late to leave the code of other
// formats out.
bool format_is_affine(uint f)
{
    return (0 FORMAT_TABLE_USUAL(ROW_IS_AFFINE, f)) != 0;
}

// Of a code of an affine format; else 0.
uint format_code_bits(uint f)
{
    return uint(0 FORMAT_TABLE_USUAL(ROW_CODE_BITS, f));
}

// Whether a matrix is stored as f: a constant wherever USUAL leaves no choice. A software device computes
// both sides of every branch, so code for a format that does not occur must not be there.
bool is_format(uint f, uint format)
{
    return USUAL == 1u << f || ((USUAL >> f & 1u) != 0 && format == f);
}

// Runs `call` with FORMAT, a constant, standing for the format: a branch for each row of the table. It stands
// outside of everything: inside, it multiplies the work of shader compilers. WITH_Q4: FORMAT_NONE stands for
// the other format.
#ifdef ONLY_FORMAT
#define BY_FORMAT(format, call)            \
    {                                      \
        const uint FORMAT = ONLY_FORMAT;   \
        call;                              \
    }
#elif defined(WITH_Q4)
#undef BY_FORMAT
#define BY_FORMAT(format, call)              \
    {                                        \
        if (format == FORMAT_Q4) {           \
            const uint FORMAT = FORMAT_Q4;   \
            call;                            \
        } else {                             \
            const uint FORMAT = FORMAT_NONE; \
            call;                            \
        }                                    \
    }
#else
#define ROW_BRANCH(name, number, bits, group, scheme, scale, call) \
    if (is_format(FORMAT_##name, by_format)) {                     \
        const uint FORMAT = FORMAT_##name;                         \
        call;                                                      \
    } else
#define BY_FORMAT(format, call)           \
    {                                     \
        const uint by_format = format;    \
        FORMAT_TABLE_USUAL(ROW_BRANCH, call) {} \
    }
#endif

