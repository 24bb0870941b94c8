// formats.glsl - the table of the basic formats. The includer defines BASIC, the set of those that occur.

// Columns of the table, constants if f is one. They are sums, because a choice between choices becomes
// branches: each use of a column would be ten blocks, and glslc would take twice as long to remove them.
#define ROW_BITS(name, number, bits, group, scheme, scale, f) + (f == number ? bits : 0)
#define ROW_SHIFT(name, number, bits, group, scheme, scale, f) \
    + (f == number ? (group == 128 ? 7 : group == 64 ? 6 : group == 32 ? 5 : 0) : 0)
#define ROW_IS_AFFINE(name, number, bits, group, scheme, scale, f) \
    + (f == number ? (SCHEME_##scheme == SCHEME_AFFINE ? 1 : 0) : 0)
#define ROW_CODE_BITS(name, number, bits, group, scheme, scale, f) \
    + (f == number ? (SCHEME_##scheme == SCHEME_AFFINE ? bits : 0) : 0)
uint format_bits(uint f)
{
    return uint(0 FORMAT_TABLE_BASIC(ROW_BITS, f));
}

uint format_group_shift(uint f)
{
    return uint(0 FORMAT_TABLE_BASIC(ROW_SHIFT, f));
}

// format_code_bits(f) > 0 means the same, but glslc 2023.2 folds that too late to drop the code of other
// formats.
bool format_is_affine(uint f)
{
    return (0 FORMAT_TABLE_BASIC(ROW_IS_AFFINE, f)) != 0;
}

// Returns the bits of an affine format's code; 0 for other formats.
uint format_code_bits(uint f)
{
    return uint(0 FORMAT_TABLE_BASIC(ROW_CODE_BITS, f));
}

// Returns whether a matrix is stored as f: a constant if BASIC leaves no choice. A software device computes
// both sides of every branch, so formats that do not occur must have no code.
bool is_format(uint f, uint format)
{
    return BASIC == 1u << f || ((BASIC >> f & 1u) != 0 && format == f);
}

// Runs `call` with the constant FORMAT for the format: a branch for each row of the table. It must be the
// outermost statement; inside a loop it would multiply the work of shader compilers. WITH_Q4: FORMAT_NONE
// stands for the extended format.
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
        FORMAT_TABLE_BASIC(ROW_BRANCH, call) {} \
    }
#endif

